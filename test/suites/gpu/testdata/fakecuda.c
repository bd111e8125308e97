// A fake libcuda.so.1, with the calls that client.c makes. It proves the client and the tests without a GPU. It is no model of a GPU: kernels do not run, and
// the time that they take is made up, so what is measured on it says nothing about sharing GPUs. The loader finds it by LD_LIBRARY_PATH, beside the fake
// NVML library, whose environment variable names the state file. Beside that file is a lock for each GPU.
//
//	- A process has the device memory of KARVE_FAKE_CUDA_MIB, and of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT or the limit of its MPS daemon if that is less. It tells
//	  the fake NVML what it has. What other processes have does not count.
//	- The device file of the GPU is KARVE_FAKE_CUDA_FILE.
//	- Kernels take time when they are waited for. Without CUDA_MPS_PIPE_DIRECTORY, processes take turns of 2 ms.
//	- A store to a wild or misaligned address is an error of its process, and the fake NVML reports its XID.
//	- A client of MPS needs a daemon that answers, and has the part of the multiprocessors that its limit of threads allows.
//
//	gcc -shared -fPIC -o libcuda.so.1 fakecuda.c

#define _DEFAULT_SOURCE

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_CONTEXT = 201, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716, MPS_CONNECTION_FAILED = 805 };

#define MIB (1ULL << 20)
#define TURN 2000000LL // ns

// kernels have the time of one iteration.
static struct kernel { const char *name; long long nanoseconds; } kernels[] = {{"empty", 20000}, {"compute", 200}, {"copy", 50000}, {"wild", 0}, {"misaligned", 0}};

static int initialized, context, broken, turns = -1;
static unsigned long long used;
static long long pending; // ns of the kernels that are not waited for

static void pause_for(long long nanoseconds) {
	struct timespec t = {nanoseconds / 1000000000, nanoseconds % 1000000000};
	nanosleep(&t, NULL);
}

// ask asks the MPS daemon, and returns 0 if there is none.
static int ask(const char *question, char *answer, size_t room) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	snprintf(a.sun_path, sizeof a.sun_path, "%.90s/control", getenv("CUDA_MPS_PIPE_DIRECTORY"));
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), asked = 0;
	if (s >= 0 && !connect(s, (struct sockaddr *)&a, sizeof a) && write(s, question, strlen(question)) > 0) {
		shutdown(s, SHUT_WR);
		ssize_t n = read(s, answer, room - 1);
		answer[n > 0 ? n : 0] = 0;
		asked = 1;
	}
	if (s >= 0) close(s);
	return asked;
}

static void limit(unsigned long long *mib, const char *text, const char *format) {
	unsigned long long number;
	char unit;
	if (!text || sscanf(text, format, &number, &unit) != 2) return;
	if (unit == 'G') number *= 1024;
	if (number < *mib) *mib = number;
}

static unsigned long long memory(void) {
	const char *card = getenv("KARVE_FAKE_CUDA_MIB");
	unsigned long long mib = card ? strtoull(card, NULL, 10) : 16384;
	char answer[64];
	limit(&mib, getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), "0=%llu%c");
	if (getenv("CUDA_MPS_PIPE_DIRECTORY") && ask("get_default_device_pinned_mem_limit 0\n", answer, sizeof answer)) limit(&mib, answer, "%llu%c");
	return mib * MIB;
}

// tell adds a line to a file of the fake NVML.
static void tell(const char *suffix, const char *format, unsigned a, unsigned long long b) {
	const char *state = getenv("KARVE_FAKE_NVML");
	char path[4096], line[128];
	if (!state) return;
	snprintf(path, sizeof path, "%s%s", state, suffix);
	int f = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600), n = snprintf(line, sizeof line, format, a, b);
	if (f < 0) return; // It is the file of another user.
	if (write(f, line, (size_t)n) != n) abort();
	close(f);
}

int cuInit(unsigned flags) {
	const char *file = getenv("KARVE_FAKE_CUDA_FILE");
	char answer[64];
	if (flags) return INVALID_VALUE;
	if (file && access(file, R_OK | W_OK)) return NO_DEVICE;
	if (getenv("CUDA_MPS_PIPE_DIRECTORY") && !ask("get_server_list\n", answer, sizeof answer)) return MPS_CONNECTION_FAILED;
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
	const char *own = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	char answer[64];
	double percent = own ? atof(own) : 100;
	if (attribute != 16 || device) return INVALID_VALUE;
	if (getenv("CUDA_MPS_PIPE_DIRECTORY") && ask("get_default_active_thread_percentage\n", answer, sizeof answer) && atof(answer) < percent) percent = atof(answer);
	*value = (int)(40 * percent / 100);
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
	tell(".processes", "0 %u %llu\n", (unsigned)getpid(), used / MIB);
	return OK;
}

int cuMemsetD8_v2(unsigned long long pointer, unsigned char value, size_t bytes) {
	(void)value;
	return pointer >= 1ULL << 32 && pointer - (1ULL << 32) + bytes <= used ? OK : INVALID_VALUE;
}

int cuMemcpyHtoD_v2(unsigned long long pointer, const void *host, size_t bytes) {
	if (!host || pointer < 1ULL << 32 || pointer - (1ULL << 32) + bytes > used) return INVALID_VALUE;
	pause_for(1000000);
	return OK;
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
	if (broken) return broken;
	if (!x || !y || !z || threads * ty * tz == 0 || threads * ty * tz > 1024) return INVALID_VALUE;
	if (!strcmp(k->name, "wild")) {
		broken = ILLEGAL_ADDRESS;
		tell("", "xid 0 %u\n", 31, 0);
	} else if (!strcmp(k->name, "misaligned")) {
		broken = MISALIGNED_ADDRESS;
		tell("", "xid 0 %u\n", 13, 0);
	}
	else pending += k->nanoseconds * (strcmp(k->name, "empty") ? *(unsigned *)parameters[2] : 1);
	return OK;
}

int cuCtxSynchronize(void);

int cuStreamQuery(void *stream) { return stream ? INVALID_VALUE : cuCtxSynchronize(); }

int cuCtxSynchronize(void) {
	if (!context) return INVALID_CONTEXT;
	if (broken) return broken;
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
