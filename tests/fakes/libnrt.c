/* A stand-in for the Neuron runtime, libnrt.so.1: the functions that neuron-pd and NIXL call, over host memory.
 *
 * Tensors have real addresses that can be read and written. The environment says what goes wrong:
 *   FAKE_NRT_INIT=n            nrt_init answers status n
 *   FAKE_NRT_STARTED=1         the runtime is started already, as under a framework
 *   FAKE_NRT_CORES=n           how many logical cores are visible (2)
 *   FAKE_NRT_UNMAPPED=1        addresses are 0, as without NEURON_RT_MAP_HBM=1
 *   FAKE_NRT_DMABUF=n          nrt_get_dmabuf_fd answers status n
 *   FAKE_NRT_EFA=bdf,bdf,...   the EFA device next to core 0, 1, ...; unset: status 1
 *   FAKE_NRT_FULL=n            no tensor of more than n bytes can be allocated
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, FAILURE = 1, INVALID = 2, INVALID_HANDLE = 3, RESOURCE = 4, UNINITIALIZED = 13, CLOSED = 14 };

typedef struct tensor {
    char *memory;
    size_t size;
    int core;
    struct tensor *next;
} tensor;

static tensor *tensors;
static int started, closed;

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static int state(void)
{
    if (closed)
        return CLOSED;
    return started || setting("FAKE_NRT_STARTED", 0) ? SUCCESS : UNINITIALIZED;
}

static tensor *holder(uint64_t address)
{
    for (tensor *t = tensors; t; t = t->next)
        if (address >= (uint64_t)t->memory && address < (uint64_t)t->memory + t->size)
            return t;
    return NULL;
}

int nrt_init(int framework, const char *fw_version, const char *fal_version)
{
    (void)framework, (void)fw_version, (void)fal_version;
    int status = (int)setting("FAKE_NRT_INIT", SUCCESS);
    if (status == SUCCESS)
        started = 1, closed = 0;
    return status;
}

void nrt_close(void)
{
    started = 0, closed = 1;
}

int nrt_get_visible_vnc_count(uint32_t *count)
{
    if (state() != SUCCESS)
        return state();
    *count = (uint32_t)setting("FAKE_NRT_CORES", 2);
    return SUCCESS;
}

int nrt_tensor_allocate(int placement, int core, size_t size, const char *name, tensor **made)
{
    (void)name;
    if (state() != SUCCESS)
        return state();
    if (placement != 0 || core < 0 || core >= setting("FAKE_NRT_CORES", 2) || !size)
        return INVALID;
    if (setting("FAKE_NRT_FULL", 0) && size > (size_t)setting("FAKE_NRT_FULL", 0))
        return RESOURCE;
    tensor *t = calloc(1, sizeof *t);
    if (!t || posix_memalign((void **)&t->memory, 4096, size))
        return RESOURCE;
    memset(t->memory, 0, size);
    t->size = size, t->core = core, t->next = tensors;
    tensors = *made = t;
    return SUCCESS;
}

void nrt_tensor_free(tensor **freed)
{
    for (tensor **at = &tensors; *at; at = &(*at)->next)
        if (*at == *freed) {
            *at = (*freed)->next;
            free((*freed)->memory);
            free(*freed);
            break;
        }
    *freed = NULL;
}

void *nrt_tensor_get_va(const tensor *t)
{
    return setting("FAKE_NRT_UNMAPPED", 0) ? NULL : t->memory;
}

int nrt_tensor_read(const tensor *t, void *into, size_t offset, size_t size)
{
    if (!t)
        return INVALID_HANDLE;
    if (offset > t->size || size > t->size - offset)
        return INVALID;
    memcpy(into, t->memory + offset, size);
    return SUCCESS;
}

int nrt_tensor_write(tensor *t, const void *from, size_t offset, size_t size)
{
    if (!t)
        return INVALID_HANDLE;
    if (offset > t->size || size > t->size - offset)
        return INVALID;
    memcpy(t->memory + offset, from, size);
    return SUCCESS;
}

int nrt_get_dmabuf_fd(uint64_t address, uint64_t size, int *descriptor)
{
    int status = (int)setting("FAKE_NRT_DMABUF", SUCCESS);
    tensor *t = holder(address);
    if (status != SUCCESS)
        return status;
    /* The first release of the real one wants the start of an allocation. */
    if (!t || address != (uint64_t)t->memory || size > t->size)
        return INVALID;
    *descriptor = open("/dev/null", O_RDWR);
    return *descriptor < 0 ? RESOURCE : SUCCESS;
}

#ifndef WITHOUT_EFA_QUERY /* before SDK 2.29 */
int nrt_get_attached_efa_bdf(const void *address, char *text, size_t *length)
{
    const char *names = getenv("FAKE_NRT_EFA");
    tensor *t = holder((uint64_t)address);
    if (!names || !*names || !t)
        return FAILURE;
    for (int core = 0; core < t->core && names; core++) {
        names = strchr(names, ',');
        names = names ? names + 1 : NULL;
    }
    if (!names)
        return FAILURE;
    size_t size = strcspn(names, ",");
    if (size + 1 > *length)
        return RESOURCE;
    memcpy(text, names, size);
    text[size] = 0;
    *length = size;
    return SUCCESS;
}
#endif
