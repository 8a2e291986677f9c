/* Tensors that fit a core's cache are taken whole, so that their second pass reads no memory. Larger ones are cut into
 * chunks which threads share; a sum is kept for each chunk and added up in order, so that any number of threads gives
 * the same bits. */
#define _GNU_SOURCE
#include "optimizer.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { LANES = 16, BLOCK = 128, CHUNK = 1 << 15, MOST_THREADS = 64 };
/* elements of a tensor that one core's second-level cache still holds in its second pass */
#define WHOLE_LARS (1 << 17)
#define WHOLE_LAMB (1 << 16)
#define BYTES_WORTH_A_THREAD (1 << 20)
/* squares outside of these lose digits in float */
#define SMALLEST_SUM 1e-20
#define LARGEST_SUM 1e30
#define SMALLEST_NORM 1.1754943508222875e-38

/* at any address, of any type's memory */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    int64_t tensor, begin, end, slot;
    int32_t passes;
} item;

typedef struct {
    const optimizer_rule *rule;
    optimizer_tensor *tensors;
    item *items;
    double *partial;     /* two for each slot */
    int64_t *first_slot; /* by tensor */
    int64_t *pending;    /* by tensor: chunks whose sums are missing */
    int64_t num_items, next;
} work;

static inline lanes load(const float *from) { return *(const lanes *)from; }
static inline void store(float *to, lanes values) { *(lanes *)to = values; }

static inline lanes root(lanes values)
{
#if defined(__AVX512F__)
    return (lanes)_mm512_sqrt_ps((__m512)values);
#else
    for (int k = 0; k < LANES; k++)
        values[k] = sqrtf(values[k]);
    return values;
#endif
}

static double sum_of(lanes values)
{
    float sum = 0;
    for (int k = 0; k < LANES; k++)
        sum += values[k];
    return (double)sum;
}

static int keeps_its_digits(double sum) { return sum > SMALLEST_SUM && sum < LARGEST_SUM; }

static double square_sum_in_double(const float *x, int64_t num)
{
    double sum = 0;
    for (int64_t i = 0; i < num; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Sums of squares of two arrays. Lanes in float within a block, blocks in double: exact to some 1e-8. Read in four
 * quarters at once: a core fetches eight streams a third faster from memory than two. */
static void lars_sums(const float *x, const float *y, int64_t num, double sums[2])
{
    int64_t quarter = num / 4 / BLOCK * BLOCK;
    sums[0] = square_sum_in_double(x + 4 * quarter, num - 4 * quarter);
    sums[1] = square_sum_in_double(y + 4 * quarter, num - 4 * quarter);
    for (int64_t i = 0; i < quarter; i += BLOCK) {
        lanes a[2] = {0}, b[2] = {0};
        for (int64_t j = i; j < i + BLOCK; j += LANES)
            for (int k = 0; k < 4; k++) {
                lanes from_x = load(x + k * quarter + j), from_y = load(y + k * quarter + j);
                a[k & 1] += from_x * from_x;
                b[k & 1] += from_y * from_y;
            }
        sums[0] += sum_of(a[0] + a[1]);
        sums[1] += sum_of(b[0] + b[1]);
    }
    sums[0] = keeps_its_digits(sums[0]) ? sums[0] : square_sum_in_double(x, num);
    sums[1] = keeps_its_digits(sums[1]) ? sums[1] : square_sum_in_double(y, num);
}

typedef struct {
    float momentum, inner, outer, decay;
} lars_numbers;

static inline void lars_lanes(float *w, const float *g, float *v, const lars_numbers *n)
{
    lanes weights = load(w), velocity = n->momentum * load(v) + n->inner * (load(g) + n->decay * weights);
    store(v, velocity);
    store(w, weights - n->outer * velocity);
}

/* In two halves at once, as above. */
static void lars_update(float *w, const float *g, float *v, int64_t num, const lars_numbers *n)
{
    int64_t half = num / 2 / LANES * LANES, i = 2 * half;
    for (int64_t at = 0; at < half; at += LANES) {
        lars_lanes(w + at, g + at, v + at, n);
        lars_lanes(w + half + at, g + half + at, v + half + at, n);
    }
    for (; i + LANES <= num; i += LANES)
        lars_lanes(w + i, g + i, v + i, n);
    float end[3][LANES] = {0};
    size_t bytes = (size_t)(num - i) * sizeof(float);
    memcpy(end[0], w + i, bytes);
    memcpy(end[1], g + i, bytes);
    memcpy(end[2], v + i, bytes);
    lars_lanes(end[0], end[1], end[2], n);
    memcpy(w + i, end[0], bytes);
    memcpy(v + i, end[2], bytes);
}

typedef struct {
    float keep1, take1, keep2, take2, correct1, correct2, eps, decay, step;
} lamb_numbers;

static inline lanes lamb_direction(lanes w, lanes m, lanes v, const lamb_numbers *n)
{
    return n->correct1 * m / (n->correct2 * root(v) + n->eps) + n->decay * w;
}

/* Moments are brought up to date; squares of weights and direction are added to `sums`. */
static inline void lamb_first_lanes(
    const float *w, const float *g, float *m, float *v, const lamb_numbers *n, lanes sums[2])
{
    lanes weights = load(w), gradient = load(g);
    lanes mean = n->keep1 * load(m) + n->take1 * gradient;
    lanes squares = n->keep2 * load(v) + n->take2 * (gradient * gradient);
    lanes direction = lamb_direction(weights, mean, squares, n);
    store(m, mean);
    store(v, squares);
    sums[0] += weights * weights;
    sums[1] += direction * direction;
}

static inline void lamb_second_lanes(float *w, const float *m, const float *v, const lamb_numbers *n)
{
    lanes weights = load(w);
    store(w, weights - n->step * lamb_direction(weights, load(m), load(v), n));
}

static void lamb_sums_in_double(
    const float *w, const float *m, const float *v, int64_t num, const lamb_numbers *n, double sums[2])
{
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < num; i++) {
        double direction = (double)(n->correct1 * m[i] / (n->correct2 * sqrtf(v[i]) + n->eps) + n->decay * w[i]);
        sums[0] += (double)w[i] * (double)w[i];
        sums[1] += direction * direction;
    }
}

static void lamb_first(
    const float *w, const float *g, float *m, float *v, int64_t num, const lamb_numbers *n, double sums[2])
{
    int64_t half = num / 2 / BLOCK * BLOCK, i = 2 * half;
    sums[0] = sums[1] = 0;
    for (int64_t at = 0; at < half; at += BLOCK) {
        lanes squares[2] = {0};
        for (int64_t j = at; j < at + BLOCK; j += LANES) {
            lamb_first_lanes(w + j, g + j, m + j, v + j, n, squares);
            lamb_first_lanes(w + half + j, g + half + j, m + half + j, v + half + j, n, squares);
        }
        sums[0] += sum_of(squares[0]);
        sums[1] += sum_of(squares[1]);
    }
    lanes squares[2] = {0};
    for (; i + LANES <= num; i += LANES)
        lamb_first_lanes(w + i, g + i, m + i, v + i, n, squares);
    float end[4][LANES] = {0};
    size_t bytes = (size_t)(num - i) * sizeof(float);
    memcpy(end[0], w + i, bytes);
    memcpy(end[1], g + i, bytes);
    memcpy(end[2], m + i, bytes);
    memcpy(end[3], v + i, bytes);
    lamb_first_lanes(end[0], end[1], end[2], end[3], n, squares);
    memcpy(m + i, end[2], bytes);
    memcpy(v + i, end[3], bytes);
    sums[0] += sum_of(squares[0]);
    sums[1] += sum_of(squares[1]);
    if (!keeps_its_digits(sums[0]) || !keeps_its_digits(sums[1]))
        lamb_sums_in_double(w, m, v, num, n, sums);
}

static void lamb_second(float *w, const float *m, const float *v, int64_t num, const lamb_numbers *n)
{
    int64_t half = num / 2 / LANES * LANES, i = 2 * half;
    for (int64_t at = 0; at < half; at += LANES) {
        lamb_second_lanes(w + at, m + at, v + at, n);
        lamb_second_lanes(w + half + at, m + half + at, v + half + at, n);
    }
    for (; i + LANES <= num; i += LANES)
        lamb_second_lanes(w + i, m + i, v + i, n);
    float end[3][LANES] = {0};
    size_t bytes = (size_t)(num - i) * sizeof(float);
    memcpy(end[0], w + i, bytes);
    memcpy(end[1], m + i, bytes);
    memcpy(end[2], v + i, bytes);
    lamb_second_lanes(end[0], end[1], end[2], n);
    memcpy(w + i, end[0], bytes);
}

static lamb_numbers numbers_of(const optimizer_rule *rule, const optimizer_tensor *t, double ratio)
{
    return (lamb_numbers){
        .keep1 = (float)rule->beta1, .take1 = (float)(1 - rule->beta1), .keep2 = (float)rule->beta2,
        .take2 = (float)(1 - rule->beta2), .correct1 = (float)t->corrections[0], .correct2 = (float)t->corrections[1],
        .eps = (float)rule->eps, .decay = (float)t->decay, .step = (float)(rule->rate * ratio),
    };
}

static void first_pass(const work *job, const item *at)
{
    const optimizer_tensor *t = &job->tensors[at->tensor];
    int64_t from = at->begin, num = at->end - at->begin;
    double *sums = &job->partial[2 * at->slot];
    if (job->rule->method == METHOD_LAMB) {
        lamb_numbers n = numbers_of(job->rule, t, 1);
        lamb_first(t->weights + from, t->gradient + from, t->first + from, t->second + from, num, &n, sums);
    } else if (t->adapts) {
        lars_sums(t->weights + from, t->gradient + from, num, sums);
    }
}

/* LARS: trust |w| / (|g| + decay |w| + eps); LAMB: |w| / |r|. A norm of zero gives 1. */
static double ratio_of(const optimizer_rule *rule, const optimizer_tensor *t)
{
    double weights = sqrt(t->sums[0]), other = sqrt(t->sums[1]);
    if (!t->adapts || weights < SMALLEST_NORM || other < SMALLEST_NORM)
        return 1;
    return rule->method == METHOD_LARS ? rule->trust * weights / (other + t->decay * weights + rule->eps)
                                       : weights / other;
}

static void second_pass(const work *job, const item *at)
{
    const optimizer_rule *rule = job->rule;
    const optimizer_tensor *t = &job->tensors[at->tensor];
    if (t->adapts && !(isfinite(t->sums[0]) && isfinite(t->sums[1])))
        return;
    double ratio = ratio_of(rule, t);
    int64_t from = at->begin, num = at->end - at->begin;
    if (rule->method == METHOD_LAMB) {
        lamb_numbers n = numbers_of(rule, t, ratio);
        lamb_second(t->weights + from, t->first + from, t->second + from, num, &n);
        return;
    }
    double inner = rule->rate_is_outside ? ratio : rule->rate * ratio, outer = rule->rate_is_outside ? rule->rate : 1;
    lars_numbers n = {(float)rule->beta1, (float)inner, (float)outer, (float)t->decay};
    lars_update(t->weights + from, t->gradient + from, t->first + from, num, &n);
}

/* Called by whoever finished the last chunk of a tensor. */
static void add_up(work *job, int64_t tensor)
{
    optimizer_tensor *t = &job->tensors[tensor];
    t->sums[0] = t->sums[1] = 0;
    for (int64_t slot = job->first_slot[tensor]; slot < job->first_slot[tensor + 1]; slot++) {
        t->sums[0] += job->partial[2 * slot];
        t->sums[1] += job->partial[2 * slot + 1];
    }
}

static void run_items(void *argument)
{
    work *job = argument;
    for (;;) {
        int64_t number = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (number >= job->num_items)
            return;
        const item *at = &job->items[number];
        int64_t *pending = &job->pending[at->tensor];
        int adapts = job->tensors[at->tensor].adapts != 0;
        if (at->passes & PASS_FIRST) {
            first_pass(job, at);
            /* -1 tells that the sums are there as well */
            if (adapts && __atomic_fetch_sub(pending, 1, __ATOMIC_ACQ_REL) == 1) {
                add_up(job, at->tensor);
                __atomic_store_n(pending, -1, __ATOMIC_RELEASE);
            }
        }
        if (at->passes & PASS_SECOND) {
            /* chunks that this one waits for came earlier in the queue, so somebody is at work on them */
            while (__atomic_load_n(pending, __ATOMIC_ACQUIRE) >= 0)
                sched_yield();
            second_pass(job, at);
        }
    }
}

static void *run_thread(void *argument)
{
    run_items(argument);
    return NULL;
}

/* Threads of OpenMP are bound as the user wants and may be spinning on their cores: new ones would stand behind them. */
static void run_all(work *job, int64_t num_threads, run_parallel parallel)
{
    if (num_threads > 1 && parallel) {
        parallel(run_items, job, (unsigned)num_threads, 0);
        return;
    }
    pthread_t threads[MOST_THREADS];
    int num_started = 0;
    while (num_started < num_threads - 1 && num_started < MOST_THREADS &&
           !pthread_create(&threads[num_started], NULL, run_thread, job))
        num_started++;
    run_items(job);
    for (int i = 0; i < num_started; i++)
        pthread_join(threads[i], NULL);
}

/* Chunk `i` of a tensor, or all of it. */
static item chunk_of(const work *job, int64_t tensor, int64_t i, int32_t passes)
{
    int64_t num = job->tensors[tensor].num, slot = job->first_slot[tensor];
    int is_whole = job->first_slot[tensor + 1] - slot == 1;
    int64_t end = is_whole || (i + 1) * CHUNK > num ? num : (i + 1) * CHUNK;
    return (item){tensor, i * CHUNK, end, slot + i, passes};
}

static void queue_tensor(work *job, int64_t tensor)
{
    int32_t passes = job->rule->passes;
    int64_t num_chunks = job->first_slot[tensor + 1] - job->first_slot[tensor];
    int waits = job->tensors[tensor].adapts && (passes & PASS_FIRST);
    job->pending[tensor] = waits ? num_chunks : -1;
    if (!waits || num_chunks == 1) {
        for (int64_t i = 0; i < num_chunks; i++)
            job->items[job->num_items++] = chunk_of(job, tensor, i, passes);
        return;
    }
    for (int64_t i = 0; i < num_chunks; i++)
        job->items[job->num_items++] = chunk_of(job, tensor, i, PASS_FIRST);
    /* backwards: the last chunks are still in a cache */
    for (int64_t i = num_chunks - 1; i >= 0 && (passes & PASS_SECOND); i--)
        job->items[job->num_items++] = chunk_of(job, tensor, i, PASS_SECOND);
}

static int64_t first_bad(const optimizer_tensor *tensors, int64_t num)
{
    for (int64_t i = 0; i < num; i++)
        if (tensors[i].adapts && !(isfinite(tensors[i].sums[0]) && isfinite(tensors[i].sums[1])))
            return i;
    return -1;
}

int64_t optimizer_step(const optimizer_rule *rule, optimizer_tensor *tensors, int64_t num, run_parallel parallel)
{
    int64_t whole = rule->method == METHOD_LARS ? WHOLE_LARS : WHOLE_LAMB, num_elements = 0, num_slots = 0;
    int64_t *first_slot = malloc((size_t)(2 * num + 1) * sizeof *first_slot);
    if (!first_slot)
        return -2;
    for (int64_t i = 0; i < num; i++) {
        first_slot[i] = num_slots;
        num_slots += tensors[i].num <= whole ? 1 : (tensors[i].num + CHUNK - 1) / CHUNK;
        num_elements += tensors[i].num;
    }
    first_slot[num] = num_slots;
    work job = {
        .rule = rule,
        .tensors = tensors,
        .items = malloc((size_t)(2 * num_slots + 1) * sizeof(item)),
        .partial = malloc((size_t)(2 * num_slots + 1) * sizeof(double)),
        .first_slot = first_slot,
        .pending = first_slot + num + 1,
    };
    int has_memory = job.items && job.partial;
    if (has_memory) {
        for (int64_t i = 0; i < num; i++)
            queue_tensor(&job, i);
        int64_t num_worth = 1 + num_elements * (int64_t)sizeof(float) / BYTES_WORTH_A_THREAD;
        run_all(&job, rule->num_threads < num_worth ? rule->num_threads : num_worth, parallel);
    }
    free(job.items);
    free(job.partial);
    free(first_slot);
    return has_memory ? first_bad(tensors, num) : -2;
}
