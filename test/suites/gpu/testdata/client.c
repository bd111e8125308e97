// A program that uses the GPU which CUDA_VISIBLE_DEVICES names. It allocates the device memory that its argument states, in MiB, or as much as it gets in steps of
// 64 MiB with "all", and prints how many MiB it has, or the error. Then it holds the memory until its input ends. It needs the driver's library only.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1ULL << 20)

static int fail(const char *what, int code) {
	printf("error %s %d\n", what, code);
	return 1;
}

int main(int argc, char **argv) {
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
	int device = 0, code;
	unsigned long long pointer, got = 0;
	if (argc != 2) return 2;
	if (!cuda) return fail("libcuda.so.1", 0);
	int (*init)(unsigned) = dlsym(cuda, "cuInit");
	int (*get)(int *, int) = dlsym(cuda, "cuDeviceGet");
	int (*create)(void **, unsigned, int) = dlsym(cuda, "cuCtxCreate_v2");
	int (*allocate)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
	int (*set)(unsigned long long, unsigned char, size_t) = dlsym(cuda, "cuMemsetD8_v2");
	if (!init || !get || !create || !allocate || !set) return fail("libcuda.so.1", 1);
	if ((code = init(0))) return fail("cuInit", code);
	if ((code = get(&device, 0))) return fail("cuDeviceGet", code);
	if ((code = create(&context, 0, device))) return fail("cuCtxCreate", code);
	if (!strcmp(argv[1], "all"))
		while (allocate(&pointer, 64 * MIB) == 0) got += 64;
	else {
		got = strtoull(argv[1], NULL, 10);
		if ((code = allocate(&pointer, got * MIB))) return fail("cuMemAlloc", code);
	}
	if (got > 0 && (code = set(pointer, 1, MIB))) return fail("cuMemsetD8", code);
	printf("%llu\n", got);
	fflush(stdout);
	char rest[64];
	while (read(0, rest, sizeof rest) > 0) {}
	return 0;
}
