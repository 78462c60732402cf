/* NIXL's LIBFABRIC plugin links against CUDA's driver. On a machine without a GPU these three answer "no device"
 * (CUDA_ERROR_NO_DEVICE, 100), which is what it asks before it takes memory for host memory. */
int cuCtxSetCurrent(void *context) { (void)context; return 100; }
int cuDeviceGetPCIBusId(char *id, int size, int device) { (void)id, (void)size, (void)device; return 100; }
int cuPointerGetAttributes(unsigned count, int *names, void **values, unsigned long long pointer)
{
    (void)count, (void)names, (void)values, (void)pointer;
    return 100;
}
