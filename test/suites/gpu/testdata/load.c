// The load mode of the client, which measures what it gets of a GPU that it shares. client.c includes it.
//
// The client has its context, its kernels and two buffers when it prints "ready". Then it reads commands, a line each, until the input ends:
//
//	calibrate                  print the multiprocessors of the GPU, and the work of each load that takes about as long as it should
//	send <seconds>             copy memory of the machine to the GPU, and print the bytes per second
//	<load> <work> <seconds>    run a load, and print its operations, the seconds, and their latencies in microseconds
//
// An operation of a load is a number of kernels and the wait for them. Work is the number of iterations of each kernel, so that all clients do the same
// whatever share of the GPU they have. A load runs for a fifth longer before it is measured, and a bit longer after, while other clients are measured.

#include <time.h>

#define THREADS 256
#define BUFFER (64 * MIB)
#define BLOCKING_SYNC 4 // CU_CTX_SCHED_BLOCKING_SYNC: a client that waits sleeps. Those that spin would compete for the CPUs instead of the GPU.
#define MULTIPROCESSOR_COUNT 16
#define NOT_READY 600
#define PERIOD 0.010 // seconds between the requests of the load "inference"

// All kernels have the same parameters: two buffers and the work. The store of compute never happens, and keeps the loop.
static const char kernels[] =
	".version 6.0\n.target sm_70\n.address_size 64\n"
	".visible .entry empty(.param .u64 from, .param .u64 to, .param .u32 work) {\n"
	"	.reg .b64 %p; .reg .b32 %n;\n"
	"	ld.param.u64 %p, [to]; ld.param.u32 %n, [work]; st.global.u32 [%p], %n; ret;\n"
	"}\n"
	".visible .entry compute(.param .u64 from, .param .u64 to, .param .u32 work) {\n"
	"	.reg .pred %q; .reg .b64 %p; .reg .b32 %n, %t; .reg .f32 %m, %c; .reg .f32 %a<4>;\n"
	"	ld.param.u64 %p, [to]; ld.param.u32 %n, [work]; mov.u32 %t, %tid.x;\n"
	"	cvt.rn.f32.u32 %a0, %t; mov.f32 %m, 0f3F7FF000; mov.f32 %c, 0f3F000000;\n"
	"	add.f32 %a1, %a0, %c; add.f32 %a2, %a1, %c; add.f32 %a3, %a2, %c;\n"
	"AGAIN:\n"
#define FOUR "	fma.rn.f32 %a0, %a0, %m, %c; fma.rn.f32 %a1, %a1, %m, %c; fma.rn.f32 %a2, %a2, %m, %c; fma.rn.f32 %a3, %a3, %m, %c;\n"
	FOUR FOUR FOUR FOUR
	"	sub.u32 %n, %n, 1; setp.ne.u32 %q, %n, 0; @%q bra AGAIN;\n"
	"	add.f32 %a0, %a0, %a1; add.f32 %a0, %a0, %a2; add.f32 %a0, %a0, %a3;\n"
	"	setp.eq.f32 %q, %a0, 0fBF800000; @%q st.global.f32 [%p], %a0; ret;\n"
	"}\n"
	".visible .entry copy(.param .u64 from, .param .u64 to, .param .u32 work) {\n"
	"	.reg .pred %q; .reg .b64 %from, %to, %o, %x, %y; .reg .b32 %n, %i, %j, %s, %w; .reg .b32 %v<4>;\n"
	"	ld.param.u64 %from, [from]; ld.param.u64 %to, [to]; ld.param.u32 %n, [work];\n"
	"	mov.u32 %i, %ctaid.x; mov.u32 %w, %ntid.x; mov.u32 %j, %tid.x; mad.lo.u32 %i, %i, %w, %j;\n"
	"	mov.u32 %s, %nctaid.x; mul.lo.u32 %s, %s, %w;\n"
	"PASS:\n"
	"	mov.u32 %j, %i;\n"
	"NEXT:\n"
	"	setp.ge.u32 %q, %j, 4194304; @%q bra DONE;\n" // BUFFER / 16
	"	mul.wide.u32 %o, %j, 16; add.u64 %x, %from, %o; add.u64 %y, %to, %o;\n"
	"	ld.global.cg.v4.u32 {%v0, %v1, %v2, %v3}, [%x]; st.global.v4.u32 [%y], {%v0, %v1, %v2, %v3};\n"
	"	add.u32 %j, %j, %s; bra NEXT;\n"
	"DONE:\n"
	"	sub.u32 %n, %n, 1; setp.ne.u32 %q, %n, 0; @%q bra PASS; ret;\n"
	"}\n";

static int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*synchronize)(void);
static int (*query)(void *);
static unsigned long long from, to;

static struct load {
	const char *name, *kernel;
	unsigned launches; // in an operation
	double target;     // seconds of a launch that has the GPU alone, or 0 if its work does not matter
	int polls;         // asks again and again whether an operation is done, instead of sleeping
	double period;     // seconds between the arrivals of operations, or 0 if one follows the other
	void *function;
	unsigned blocks;
} loads[] = {
	{.name = "short", .kernel = "empty", .launches = 1},
	{.name = "polling", .kernel = "empty", .launches = 1, .polls = 1},
	{.name = "compute", .kernel = "compute", .launches = 1, .target = 0.002},
	{.name = "memory", .kernel = "copy", .launches = 1, .target = 0.002},
	{.name = "inference", .kernel = "compute", .launches = 20, .target = 0.0001, .period = PERIOD},
};

#define EACH(l) (struct load *l = loads; l < loads + sizeof loads / sizeof *loads; l++)

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void sleep_until(double at) {
	struct timespec t = {.tv_sec = (time_t)at, .tv_nsec = (long)((at - (time_t)at) * 1e9)};
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static int operate(struct load *l, unsigned work, unsigned launches) {
	void *parameters[] = {&from, &to, &work};
	int code;
	for (unsigned i = 0; i < launches; i++)
		if ((code = launch_kernel(l->function, l->blocks, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL))) return fail("cuLaunchKernel", code);
	while (l->polls && (code = query(NULL)) == NOT_READY) {}
	if (l->polls && code) return fail("cuStreamQuery", code);
	if (!l->polls && (code = synchronize())) return fail("cuCtxSynchronize", code);
	return 0;
}

// prepare has the loads ready to run. The loads are the same size in all clients, so the number of multiprocessors is an argument: a client of MPS with a
// limit of threads sees fewer. With 0, it is what the client sees.
static int prepare(void *cuda, int device, int *multiprocessors) {
	int (*attribute)(int *, int, int) = dlsym(cuda, "cuDeviceGetAttribute");
	int (*load_module)(void **, const void *) = dlsym(cuda, "cuModuleLoadData");
	int (*find)(void **, void *, const char *) = dlsym(cuda, "cuModuleGetFunction");
	int (*allocate)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
	int (*set)(unsigned long long, unsigned char, size_t) = dlsym(cuda, "cuMemsetD8_v2");
	void *module = NULL;
	int code;
	launch_kernel = dlsym(cuda, "cuLaunchKernel");
	synchronize = dlsym(cuda, "cuCtxSynchronize");
	query = dlsym(cuda, "cuStreamQuery");
	if (!attribute || !load_module || !find || !allocate || !set || !launch_kernel || !synchronize || !query) return fail("libcuda.so.1", 3);
	if (*multiprocessors <= 0 && (code = attribute(multiprocessors, MULTIPROCESSOR_COUNT, device))) return fail("cuDeviceGetAttribute", code);
	if ((code = load_module(&module, kernels))) return fail("cuModuleLoadData", code);
	if ((code = allocate(&from, BUFFER)) || (code = allocate(&to, BUFFER))) return fail("cuMemAlloc", code);
	if ((code = set(from, 1, BUFFER)) || (code = set(to, 2, BUFFER))) return fail("cuMemsetD8", code);
	for EACH(l) {
		if ((code = find(&l->function, module, l->kernel))) return fail("cuModuleGetFunction", code);
		l->blocks = 1;
		if (!strcmp(l->name, "compute")) l->blocks = 4 * *multiprocessors;
		if (!strcmp(l->name, "memory")) l->blocks = 8 * *multiprocessors;
		if (!strcmp(l->name, "inference") && *multiprocessors >= 4) l->blocks = *multiprocessors / 4;
		if (operate(l, 1, 1)) return 1; // The driver loads a kernel when it is first launched.
	}
	return 0;
}

static int calibrate(int multiprocessors) {
	printf("{\"multiprocessors\": %d", multiprocessors);
	for EACH(l) {
		unsigned work = 1;
		// The clocks of the GPU rise in the first rounds, so the last ones count.
		for (int round = 0; l->target > 0 && round < 12; round++) {
			double began = now();
			if (operate(l, work, 20)) return 1;
			double factor = l->target / ((now() - began) / 20);
			factor = factor > 16 ? 16 : factor < 1.0 / 16 ? 1.0 / 16 : factor;
			work = work * factor < 1 ? 1 : (unsigned)(work * factor + 0.5);
		}
		printf(", \"%s\": %u", l->name, work);
	}
	printf("}\n");
	return 0;
}

static int rising(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static int run(struct load *l, unsigned work, double seconds) {
	static double *latencies;
	static size_t room;
	size_t n = 0;
	// Requests arrive by the clock, whether or not the one before is done, and clients are out of step: the multiples of the golden section are far apart.
	double begin = now(), due = begin + PERIOD * (getpid() * 6180L % 10000) / 10000;
	double first = begin + seconds / 5, last = first + seconds, end = last + seconds / 15;
	for (;;) {
		double start = now(), done;
		if (l->period > 0) {
			start = due;
			due += l->period;
			if (start < end) sleep_until(start);
		}
		if (now() >= end) break;
		if (operate(l, work, l->launches)) return 1;
		done = now();
		if (done < first || done >= last) continue;
		if (n == room) {
			double *more = realloc(latencies, (room = room ? 2 * room : 1 << 16) * sizeof *more);
			if (!more) return fail("realloc", 0);
			latencies = more;
		}
		latencies[n++] = (done - start) * 1e6;
	}
	if (n) qsort(latencies, n, sizeof *latencies, rising);
#define AT(percent) (n ? latencies[(n - 1) * (percent) / 100] : 0)
	printf("{\"load\": \"%s\", \"operations\": %zu, \"seconds\": %.3f, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f}\n",
		l->name, n, seconds, AT(50), AT(90), AT(99), AT(100));
	return 0;
}

static int copy_to_gpu(void *cuda, double seconds) {
	static char host[16 * MIB];
	int (*copy)(unsigned long long, const void *, size_t) = dlsym(cuda, "cuMemcpyHtoD_v2");
	double began, took, sent = 0;
	int code;
	if (!copy) return fail("libcuda.so.1", 4);
	memset(host, 1, sizeof host);
	began = now();
	do {
		if ((code = copy(from, host, sizeof host))) return fail("cuMemcpyHtoD", code);
		sent += sizeof host;
	} while ((took = now() - began) < seconds);
	printf("%.0f\n", sent / took);
	return 0;
}

static int obey(void *cuda, int device, int multiprocessors) {
	char line[128], name[16];
	if (prepare(cuda, device, &multiprocessors)) return 1;
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		unsigned work = 0;
		double seconds = 0;
		struct load *found = NULL;
		int words = sscanf(line, "%15s %u %lf", name, &work, &seconds);
		for EACH(l)
			if (words == 3 && !strcmp(l->name, name)) found = l;
		if (found && work > 0) {
			if (run(found, work, seconds)) return 1;
		} else if (words == 1 && !strcmp(name, "calibrate")) {
			if (calibrate(multiprocessors)) return 1;
		} else if (sscanf(line, "send %lf", &seconds) == 1) {
			if (copy_to_gpu(cuda, seconds)) return 1;
		} else return fail("command", words);
		fflush(stdout);
	}
	return 0;
}
