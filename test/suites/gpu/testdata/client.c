// A program that uses the GPU which CUDA_VISIBLE_DEVICES names. It needs the driver's library only. Its argument says what it does:
//
//	a number   allocate so much device memory in MiB, print how much it has, and hold it until the input ends. For each line of input, use it and print "ok"
//	all        the same with as much as it gets in steps of 64 MiB
//	total      print how much device memory programs can use in MiB
//	multiprocessors    print how many multiprocessors it can use
//	fault      write to an address that it does not own
//	misaligned write to an address of its own that is not aligned
//	load       run the loads that it reads: see load.c. A second argument is the number of multiprocessors that they are made for
//
// It prints an error as "error", what failed, and CUDA's number.

#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1ULL << 20)

// Both kernels get an address, and only the first ignores it.
static const char faults[] = ".version 6.0\n.target sm_70\n.address_size 64\n"
	".visible .entry wild(.param .u64 at) { .reg .b64 %p; .reg .b32 %v; mov.u64 %p, 16; mov.u32 %v, 1; st.global.u32 [%p], %v; ret; }\n"
	".visible .entry misaligned(.param .u64 at) { .reg .b64 %p; .reg .b32 %v; ld.param.u64 %p, [at]; mov.u32 %v, 1; st.global.u32 [%p+1], %v; ret; }\n";

static int fail(const char *what, int code) {
	printf("error %s %d\n", what, code);
	return 1;
}

#include "load.c"

static int fault(void *cuda, const char *name, unsigned long long at) {
	void *module = NULL, *kernel = NULL, *parameters[] = {&at};
	int (*load)(void **, const void *) = dlsym(cuda, "cuModuleLoadData");
	int (*find)(void **, void *, const char *) = dlsym(cuda, "cuModuleGetFunction");
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) = dlsym(cuda, "cuLaunchKernel");
	int code;
	if (!load || !find || !launch) return fail("libcuda.so.1", 2);
	if ((code = load(&module, faults))) return fail("cuModuleLoadData", code);
	if ((code = find(&kernel, module, name))) return fail("cuModuleGetFunction", code);
	if ((code = launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL))) return fail("cuLaunchKernel", code);
	return fail("cuCtxSynchronize", synchronize());
}

int main(int argc, char **argv) {
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
	int device = 0, code;
	unsigned long long pointer, got = 0;
	size_t total = 0;
	if (argc < 2) return 2;
	int loading = !strcmp(argv[1], "load");
	if (argc > 2 + loading) return 2;
	if (!cuda) return fail("libcuda.so.1", 0);
	int (*init)(unsigned) = dlsym(cuda, "cuInit");
	int (*get)(int *, int) = dlsym(cuda, "cuDeviceGet");
	int (*create)(void **, unsigned, int) = dlsym(cuda, "cuCtxCreate_v2");
	int (*size)(size_t *, int) = dlsym(cuda, "cuDeviceTotalMem_v2");
	int (*allocate)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
	int (*set)(unsigned long long, unsigned char, size_t) = dlsym(cuda, "cuMemsetD8_v2");
	int (*attribute)(int *, int, int) = dlsym(cuda, "cuDeviceGetAttribute");
	synchronize = dlsym(cuda, "cuCtxSynchronize");
	if (!init || !get || !create || !size || !allocate || !set || !attribute || !synchronize) return fail("libcuda.so.1", 1);
	if ((code = init(0))) return fail("cuInit", code);
	if ((code = get(&device, 0))) return fail("cuDeviceGet", code);
	if ((code = create(&context, loading ? BLOCKING_SYNC : 0, device))) return fail("cuCtxCreate", code);
	if (loading) return obey(cuda, device, argc > 2 ? atoi(argv[2]) : 0);
	if (!strcmp(argv[1], "fault")) return fault(cuda, "wild", 0);
	if (!strcmp(argv[1], "misaligned")) {
		if ((code = allocate(&pointer, MIB))) return fail("cuMemAlloc", code);
		return fault(cuda, "misaligned", pointer);
	}
	if (!strcmp(argv[1], "multiprocessors")) {
		int n = 0;
		if ((code = attribute(&n, MULTIPROCESSOR_COUNT, device))) return fail("cuDeviceGetAttribute", code);
		printf("%d\n", n);
		return 0;
	}
	if (!strcmp(argv[1], "total")) {
		if ((code = size(&total, device))) return fail("cuDeviceTotalMem", code);
		printf("%llu\n", total / MIB);
		return 0;
	}
	if (!strcmp(argv[1], "all"))
		for (unsigned long long more; allocate(&more, 64 * MIB) == 0; got += 64) pointer = more; // A call that fails can change its argument.
	else {
		got = strtoull(argv[1], NULL, 10);
		if ((code = allocate(&pointer, got * MIB))) return fail("cuMemAlloc", code);
	}
	if (got > 0 && (code = set(pointer, 1, MIB))) return fail("cuMemsetD8", code);
	printf("%llu\n", got);
	fflush(stdout);
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		if (got > 0 && (code = set(pointer, 2, MIB))) return fail("cuMemsetD8", code);
		if ((code = synchronize())) return fail("cuCtxSynchronize", code);
		printf("ok\n");
		fflush(stdout);
	}
	return 0;
}
