/* A stand-in for libnvidia-ml.so.1: answers as the variable STAND_IN_NVML says.
 *
 *   switch      4 GPUs, 12 links each to a switch; GPU 2 has 11 up
 *   bridge      4 GPUs, 0+1 and 2+3 joined by 4 links each, the driver too old to say what is at the far end
 *   bus         2 GPUs without NVLink on two sockets, which cannot read each other's memory
 *   parted      2 GPUs at a switch that keeps them apart
 *   alone       1 GPU with links that go to GPUs of somebody else
 *   refused     the library does not match the driver
 *   stuck       never answers
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, INVALID = 2, NOT_SUPPORTED = 3, MISMATCH = 18 };

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} pci_info;

static int is(const char *scene) {
    const char *asked = getenv("STAND_IN_NVML");
    return asked && !strcmp(asked, scene);
}

static unsigned number(void *gpu) { return (unsigned)((size_t)gpu - 1); }

static unsigned num_gpus(void) { return is("alone") ? 1 : is("bus") || is("parted") ? 2 : 4; }

int nvmlInit_v2(void) {
    if (is("stuck")) sleep(600);
    return is("refused") ? MISMATCH : DONE;
}

int nvmlDeviceGetCount_v2(unsigned *answer) {
    *answer = num_gpus();
    return DONE;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **answer) {
    *answer = (void *)(size_t)(index + 1);
    return index < num_gpus() ? DONE : INVALID;
}

int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) {
    snprintf(text, size, "GPU-%u", number(gpu));
    return DONE;
}

static int place(pci_info *answer, unsigned bus) {
    memset(answer, 0, sizeof *answer);
    answer->bus = bus;
    return DONE;
}

int nvmlDeviceGetPciInfo_v3(void *gpu, pci_info *answer) { return place(answer, 0x10 * (number(gpu) + 1)); }

int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, unsigned *answer) {
    unsigned most = is("switch") || is("alone") ? 12 : 4;
    if (is("bus")) return NOT_SUPPORTED;
    if (link >= most) return INVALID;
    *answer = !(is("switch") && number(gpu) == 2 && link == 5);
    return DONE;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *gpu, unsigned link, unsigned *answer) {
    (void)gpu, (void)link;
    if (is("bridge")) return NOT_SUPPORTED;
    *answer = is("switch") || is("parted") ? 2 : 0;
    return DONE;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned link, pci_info *answer) {
    (void)link;
    if (is("bridge")) return place(answer, 0x10 * ((number(gpu) ^ 1) + 1));
    return place(answer, 0xee);
}

int nvmlDeviceGetTopologyCommonAncestor(void *first, void *second, unsigned *answer) {
    *answer = number(first) / 2 == number(second) / 2 && !is("bus") ? 10 : 50;
    return DONE;
}

int nvmlDeviceGetP2PStatus(void *first, void *second, int kind, unsigned *answer) {
    int are_joined = is("switch") || (is("bridge") && number(first) / 2 == number(second) / 2);
    *answer = kind == 2 ? (are_joined ? 0 : 5) : (is("bus") || is("parted") ? 1 : 0);
    return DONE;
}
