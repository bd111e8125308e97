// A fake libcuda.so.1, with the calls that client.c makes. It proves the client and the tests without a GPU. It is no model of a GPU: kernels do not run, and
// the time that they take is made up, so what is measured on it says nothing about sharing GPUs. The loader finds it by LD_LIBRARY_PATH, beside the fake
// NVML library, whose environment variable names the state file. Beside that file is a lock for each GPU.
//
//	- A process has the device memory of KARVE_FAKE_CUDA_MIB, and of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT if that is less. What other processes have is not known.
//	- Kernels take time when they are waited for. Without CUDA_MPS_PIPE_DIRECTORY, processes take turns of 2 ms.
//	- A store to a wild address is an error of its process.
//
//	gcc -shared -fPIC -o libcuda.so.1 fakecuda.c

#define _DEFAULT_SOURCE

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_CONTEXT = 201, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };

#define MIB (1ULL << 20)
#define TURN 2000000LL // ns

// kernels have the time of one iteration.
static struct kernel { const char *name; long long nanoseconds; } kernels[] = {{"empty", 20000}, {"compute", 200}, {"copy", 50000}, {"wild", 0}};

static int initialized, context, broken, turns = -1;
static unsigned long long used;
static long long pending; // ns of the kernels that are not waited for

static void pause_for(long long nanoseconds) {
	struct timespec t = {nanoseconds / 1000000000, nanoseconds % 1000000000};
	nanosleep(&t, NULL);
}

static unsigned long long memory(void) {
	const char *card = getenv("KARVE_FAKE_CUDA_MIB"), *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	unsigned long long mib = card ? strtoull(card, NULL, 10) : 16384, number;
	char unit;
	if (limit && sscanf(limit, "0=%llu%c", &number, &unit) == 2) {
		if (unit == 'G') number *= 1024;
		if (number < mib) mib = number;
	}
	return mib * MIB;
}

int cuInit(unsigned flags) {
	if (flags) return INVALID_VALUE;
	initialized = 1;
	return OK;
}

int cuDeviceGet(int *device, int ordinal) {
	if (!initialized) return NOT_INITIALIZED;
	if (ordinal) return NO_DEVICE;
	*device = 0;
	return OK;
}

// The only attribute that clients read is the number of multiprocessors.
int cuDeviceGetAttribute(int *value, int attribute, int device) {
	if (attribute != 16 || device) return INVALID_VALUE;
	*value = 40;
	return OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
	if (device) return NO_DEVICE;
	*bytes = memory();
	return OK;
}

int cuCtxCreate_v2(void **created, unsigned flags, int device) {
	const char *state = getenv("KARVE_FAKE_NVML"), *uuid = getenv("CUDA_VISIBLE_DEVICES");
	char path[4096];
	if (!initialized) return NOT_INITIALIZED;
	if (device || flags > 7) return INVALID_VALUE;
	if (!getenv("CUDA_MPS_PIPE_DIRECTORY") && state) {
		snprintf(path, sizeof path, "%s.turns.%s", state, uuid ? uuid : "");
		turns = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	}
	*created = &context;
	context = 1;
	return OK;
}

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
	if (!context) return INVALID_CONTEXT;
	if (!bytes) return INVALID_VALUE;
	if (used + bytes > memory()) return OUT_OF_MEMORY;
	*pointer = (1ULL << 32) + used;
	used += bytes;
	return OK;
}

int cuMemsetD8_v2(unsigned long long pointer, unsigned char value, size_t bytes) {
	(void)value;
	return pointer >= 1ULL << 32 && pointer - (1ULL << 32) + bytes <= used ? OK : INVALID_VALUE;
}

int cuModuleLoadData(void **module, const void *image) {
	if (!context) return INVALID_CONTEXT;
	*module = (void *)image;
	return OK;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
	char entry[64];
	snprintf(entry, sizeof entry, ".visible .entry %s(", name);
	for (struct kernel *k = kernels; k < kernels + sizeof kernels / sizeof *kernels; k++)
		if (!strcmp(k->name, name) && strstr(module, entry)) {
			*function = k;
			return OK;
		}
	return NOT_FOUND;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared, void *stream, void **parameters, void **extra) {
	struct kernel *k = function;
	(void)shared, (void)stream, (void)extra;
	if (broken) return ILLEGAL_ADDRESS;
	if (!x || !y || !z || threads * ty * tz == 0 || threads * ty * tz > 1024) return INVALID_VALUE;
	if (!strcmp(k->name, "wild")) broken = 1;
	else pending += k->nanoseconds * (strcmp(k->name, "empty") ? *(unsigned *)parameters[2] : 1);
	return OK;
}

int cuCtxSynchronize(void) {
	if (!context) return INVALID_CONTEXT;
	if (broken) return ILLEGAL_ADDRESS;
	for (; pending > 0; pending -= TURN) {
		if (turns >= 0) flock(turns, LOCK_EX);
		pause_for(pending < TURN ? pending : TURN);
		if (turns >= 0) {
			flock(turns, LOCK_UN);
			pause_for(1); // Another process may have its turn.
		}
	}
	pending = 0;
	return OK;
}
