/* One step of LARS or LAMB over many tensors: each is read once for its norms and once for its update. */
#ifndef TOPOUT_OPTIMIZER_H
#define TOPOUT_OPTIMIZER_H
#include <stdint.h>

enum { METHOD_LARS = 0, METHOD_LAMB = 1 };
enum { PASS_FIRST = 1, PASS_SECOND = 2 };

/* Flat memory of one parameter. Mirrored by numpy in native/optimizer.py. */
typedef struct {
    float *weights;
    const float *gradient;
    float *first;             /* LARS: momentum; LAMB: mean of gradients */
    float *second;            /* LAMB: mean of their squares */
    int64_t num;
    double sums[2];           /* of squares: of the weights, and of the gradient (LARS) or the direction (LAMB) */
    double decay;
    double corrections[2];    /* LAMB: 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
    int64_t adapts;           /* else the ratio is 1 and no norm is taken */
} optimizer_tensor;

typedef struct {
    int32_t method;
    int32_t passes;           /* both, or one when norms are summed over ranks between them */
    int32_t rate_is_outside;  /* LARS: the rate multiplies the momentum, not what enters it */
    int32_t num_threads;
    double rate, trust, eps;
    double beta1, beta2;      /* LARS: beta1 is the momentum */
} optimizer_rule;

/* GOMP_parallel of the OpenMP that this process has, or NULL. */
typedef void (*run_parallel)(void (*function)(void *), void *data, unsigned num_threads, unsigned flags);

/* The number of the first tensor whose norms are not finite, which is left as it is; -1 when all are; -2: no memory. */
int64_t optimizer_step(const optimizer_rule *rule, optimizer_tensor *tensors, int64_t num, run_parallel parallel);

#endif
