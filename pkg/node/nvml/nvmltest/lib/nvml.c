// A stand-in for libnvidia-ml.so.1: it answers the calls that Karve's agent makes, out of the text file that $KARVE_FAKE_NVML names.
// The file is read again at each call, so that a test changes the machine by writing it. state.go writes it and describes its lines.
//
// Only what the agent needs is declared here, with the layout that the real library's callers expect (x86-64 and arm64 Linux).

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	OK = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	TIMEOUT = 10,
	GPU_IS_LOST = 15,
	RESET_REQUIRED = 16,
	IN_USE = 19,
	OUT_OF_MEMORY = 20,
	INSUFFICIENT_RESOURCES = 23,
	ARGUMENT_VERSION_MISMATCH = 25,
};

#include "mig.h"

enum { MAX_GPM = 12, MAX_EXCLUDED = 8, MAX_DEVICES = 16, MAX_PROCESSES = 64, MAX_XIDS = 1024, MAX_SETS = 64, MAX_NVLINKS = 18 };

#define EVENT_SINGLE_BIT 0x1ULL
#define EVENT_DOUBLE_BIT 0x2ULL
#define EVENT_XID 0x8ULL
#define FIELD_RECOVERY 230
#define NOT_AVAILABLE (~0ULL)
#define MIB (1024ULL * 1024ULL)

typedef unsigned long long u64;

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct process_v1 { unsigned pid; u64 memory; };
struct process_v2 { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };
struct sample { unsigned pid; u64 time; unsigned sm, memory, encoder, decoder; };
struct pci_v1 { char bus_id[16]; unsigned domain, bus, device, id; unsigned subsystem, reserved[4]; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct excluded { struct pci pci; char uuid[80]; };
struct field { unsigned id, scope; long long time, latency; unsigned type; int code; union { double d; unsigned u; u64 l; } value; };
struct event { void *device; u64 type, data; unsigned gpu_instance, compute_instance; };

struct process { unsigned pid; char kind[16]; long long mib; int sm; int instance, compute; }; // of no instance: -1

struct device {
	int present, lost, minor, major, minor_capability, gpu_percent, memory_percent, celsius, sm_mhz, memory_mhz, recovery;
	int mig, mig_reset; // mig is -1: not capable, 0: off, 1: on
	int profiles;
	struct profile profile[MAX_PROFILES];
	struct mig instances;
	int nvswitch;
	// nvlinks and level are the NVLinks to other devices, and the topology levels. The level of devices without a line "link" is -1.
	int nvlinks[MAX_DEVICES], level[MAX_DEVICES];
	long long total, reserved, used, milliwatts, millijoules;
	char uuid[96], name[96], pci[32], without[256];
	int gpms; // 0: no profiling counters
	double gpm[MAX_GPM];
	int processes;
	struct process process[MAX_PROCESSES];
};

struct state {
	int init, cuda, count, xids, fail, hang, excluded;
	char exclude[MAX_EXCLUDED][32];
	char driver[80];
	struct device device[MAX_DEVICES];
	struct { int device, xid, instance, compute; } xid[MAX_XIDS];
};

struct set { int used, seen; u64 types[MAX_DEVICES]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int inits;
static char handles[MAX_DEVICES];
// part_handles are those of MIG devices, by GPU, GPU instance and compute instance.
static char part_handles[MAX_DEVICES][64][MAX_COMPUTE];
static struct set sets[MAX_SETS];

static void parse_gpm(struct device *d, char *value) {
	for (int n = 0; d->gpms < MAX_GPM && sscanf(value, "%lf%n", &d->gpm[d->gpms], &n) == 1; value += n) d->gpms++;
}

static void parse_device(struct device *d, char *rest) {
	char key[32], *value;
	int n = 0;
	if (sscanf(rest, "%31s %n", key, &n) != 1) return;
	value = rest + n;
	d->present = 1;
	if (!strcmp(key, "uuid")) snprintf(d->uuid, sizeof d->uuid, "%s", value);
	else if (!strcmp(key, "name")) snprintf(d->name, sizeof d->name, "%s", value);
	else if (!strcmp(key, "pci")) snprintf(d->pci, sizeof d->pci, "%s", value);
	else if (!strcmp(key, "minor")) d->minor = atoi(value);
	else if (!strcmp(key, "memory")) sscanf(value, "%lld %lld %lld", &d->total, &d->reserved, &d->used);
	else if (!strcmp(key, "compute")) sscanf(value, "%d %d", &d->major, &d->minor_capability);
	else if (!strcmp(key, "utilization")) sscanf(value, "%d %d", &d->gpu_percent, &d->memory_percent);
	else if (!strcmp(key, "temperature")) d->celsius = atoi(value);
	else if (!strcmp(key, "power")) sscanf(value, "%lld %lld", &d->milliwatts, &d->millijoules);
	else if (!strcmp(key, "clocks")) sscanf(value, "%d %d", &d->sm_mhz, &d->memory_mhz);
	else if (!strcmp(key, "recovery")) d->recovery = atoi(value);
	else if (!strcmp(key, "mig")) d->mig = !strcmp(value, "on") ? 1 : !strcmp(value, "off") ? 0 : -1;
	else if (!strcmp(key, "nvswitch")) d->nvswitch = atoi(value);
	else if (!strcmp(key, "mig-reset")) d->mig_reset = 1;
	else if (!strcmp(key, "mig-profile") && d->profiles < MAX_PROFILES) parse_profile(&d->profile[d->profiles++], value);
	else if (!strcmp(key, "lost")) d->lost = 1;
	else if (!strcmp(key, "without")) snprintf(d->without, sizeof d->without, " %s ", value);
	else if (!strcmp(key, "gpm")) parse_gpm(d, value);
	else if (!strcmp(key, "process") && d->processes < MAX_PROCESSES) {
		struct process *p = &d->process[d->processes];
		p->instance = p->compute = -1;
		if (sscanf(value, "%u %15s %lld %d %d %d", &p->pid, p->kind, &p->mib, &p->sm, &p->instance, &p->compute) >= 4) d->processes++;
	}
}

static void parse_line(struct state *s, char *line) {
	int index, xid, instance = -1, compute = -1, n = 0;
	if (sscanf(line, "driver %79s", s->driver) == 1) return;
	if (sscanf(line, "cuda %d", &s->cuda) == 1) return;
	if (sscanf(line, "init %d", &s->init) == 1) return;
	if (sscanf(line, "fail %d", &s->fail) == 1) return;
	if (sscanf(line, "hang %d", &s->hang) == 1) return;
	if (s->excluded < MAX_EXCLUDED && sscanf(line, "excluded %31s", s->exclude[s->excluded]) == 1) {
		s->excluded++;
		return;
	}
	int other, links, level;
	if (sscanf(line, "link %d %d %d %d", &index, &other, &links, &level) == 4) {
		if (index < 0 || index >= MAX_DEVICES || other < 0 || other >= MAX_DEVICES) return;
		s->device[index].nvlinks[other] = s->device[other].nvlinks[index] = links;
		s->device[index].level[other] = s->device[other].level[index] = level;
		return;
	}
	if (sscanf(line, "xid %d %d %d %d", &index, &xid, &instance, &compute) >= 2) {
		if (s->xids < MAX_XIDS) {
			s->xid[s->xids].device = index;
			s->xid[s->xids].instance = instance;
			s->xid[s->xids].compute = compute;
			s->xid[s->xids++].xid = xid;
		}
		return;
	}
	if (sscanf(line, "gpu %d %n", &index, &n) == 1 && n > 0 && index >= 0 && index < MAX_DEVICES) {
		if (index >= s->count) s->count = index + 1;
		parse_device(&s->device[index], line + n);
	}
}

// read_running adds the processes that the file beside the state file has: lines with a GPU, a PID and MiB. The last line of a process counts while it runs.
static void read_running(struct state *s, const char *path) {
	char name[512], line[128];
	snprintf(name, sizeof name, "%s.processes", path);
	FILE *f = fopen(name, "re");
	if (!f) return;
	while (fgets(line, sizeof line, f)) {
		struct process p = {.kind = "compute", .sm = -1, .instance = -1, .compute = -1};
		int index, i;
		if (sscanf(line, "%d %u %lld", &index, &p.pid, &p.mib) != 3 || index < 0 || index >= s->count || kill((pid_t)p.pid, 0)) continue;
		struct device *d = &s->device[index];
		for (i = 0; i < d->processes && d->process[i].pid != p.pid; i++) {}
		if (i == MAX_PROCESSES) continue;
		if (i == d->processes) d->processes++;
		else d->used -= d->process[i].mib;
		d->used += p.mib;
		d->process[i] = p;
	}
	fclose(f);
}

// read_once returns what the file says, to be freed. Without a file there is no driver.
static struct state *read_once(void) {
	struct state *s = calloc(1, sizeof *s);
	const char *path = getenv("KARVE_FAKE_NVML");
	FILE *f = path ? fopen(path, "re") : NULL;
	char line[512];
	if (!s) abort();
	for (int i = 0; i < MAX_DEVICES; i++) {
		s->device[i].mig = -1;
		for (int j = 0; j < MAX_DEVICES; j++) s->device[i].level[j] = -1;
	}
	if (!f) {
		s->init = DRIVER_NOT_LOADED;
		return s;
	}
	while (fgets(line, sizeof line, f)) {
		line[strcspn(line, "\r\n")] = 0;
		parse_line(s, line);
	}
	fclose(f);
	read_running(s, path);
	for (int i = 0; i < s->count; i++)
		if (s->device[i].mig >= 0) read_mig(&s->device[i].instances, &s->device[i].mig, i);
	return s;
}

// read_state does not return while the file says that the driver hangs.
static struct state *read_state(void) {
	for (;;) {
		struct state *s = read_once();
		if (!s->hang) return s;
		free(s);
		nanosleep(&(struct timespec){0, 5000000}, NULL);
	}
}

static int initialized(void) {
	pthread_mutex_lock(&lock);
	int yes = inits > 0;
	pthread_mutex_unlock(&lock);
	return yes;
}

// look finds a device by its handle. The caller frees *s when it answers OK.
static int look(void *handle, struct state **s, struct device **d) {
	long index = (char *)handle - handles;
	if (!initialized()) return UNINITIALIZED;
	if (!handle || index < 0 || index >= MAX_DEVICES) return INVALID_ARGUMENT;
	*s = read_state();
	*d = &(*s)->device[index];
	if ((*s)->fail || !(*d)->present || (*d)->lost) {
		int code = (*s)->fail ? (*s)->fail : (*d)->present ? GPU_IS_LOST : INVALID_ARGUMENT;
		free(*s);
		return code;
	}
	return OK;
}

// lacks says that the device has no such thing, by the words of its line "without".
static int lacks(struct device *d, const char *what) {
	char word[64];
	snprintf(word, sizeof word, " %s ", what);
	return strstr(d->without, word) != NULL;
}

// ANSWER runs what follows the handle with a state s and a device d, and returns what that sets in code.
#define ANSWER(handle, ...) \
	do { \
		struct state *s; \
		struct device *d; \
		int code = look(handle, &s, &d); \
		if (code != OK) return code; \
		__VA_ARGS__; \
		free(s); \
		return code; \
	} while (0)

static int is_part(void *handle) {
	char *first = &part_handles[0][0][0];
	return (char *)handle >= first && (char *)handle < first + sizeof part_handles;
}

// PART runs what follows the handle of a MIG device with its GPU d, its GPU instance g and its compute instance c.
#define PART(handle, ...) \
	do { \
		if (!is_part(handle)) return INVALID_ARGUMENT; \
		long offset = (char *)(handle) - &part_handles[0][0][0]; \
		long index = offset / MAX_COMPUTE / 64; \
		ANSWER(&handles[index], { \
			struct gpu_instance *g = NULL; \
			struct compute_instance *c = NULL; \
			for (int i = 0; i < d->instances.instances; i++) \
				if (d->instances.instance[i].id == offset / MAX_COMPUTE % 64) g = &d->instances.instance[i]; \
			for (int i = 0; g && i < g->computes; i++) \
				if (g->compute[i].id == offset % MAX_COMPUTE) c = &g->compute[i]; \
			if (!c) code = NOT_FOUND; \
			else { __VA_ARGS__; } \
		}); \
	} while (0)

// part_uuid is that of a MIG device, which is the same whenever the same instance is created.
static void part_uuid(struct device *d, struct gpu_instance *g, struct compute_instance *c, char *uuid) {
	u64 hash = 14695981039346656037ULL;
	for (char *p = d->uuid; *p; p++) hash = (hash ^ (unsigned char)*p) * 1099511628211ULL;
	u64 more = (hash ^ (u64)(g->id * 64 + g->profile * 8 + c->id)) * 1099511628211ULL;
	sprintf(uuid, "MIG-%08x-%04x-5%03x-8%03x-%012llx", (unsigned)(more >> 32), (unsigned)more & 0xffff, (unsigned)(more >> 16) & 0xfff, (unsigned)hash & 0xfff, more & 0xffffffffffffULL);
}

static int copy(const char *from, char *to, unsigned length);

static int part_get_uuid(void *part, char *uuid, unsigned length) {
	PART(part, {
		char text[96];
		part_uuid(d, g, c, text);
		code = copy(text, uuid, length);
	});
}

static int part_get_name(void *part, char *name, unsigned length) {
	PART(part, {
		struct profile *p = &d->profile[g->profile];
		char text[256];
		if (c->slices == p->slices) snprintf(text, sizeof text, "%s MIG %s", d->name, p->name);
		else snprintf(text, sizeof text, "%s MIG %dc.%s", d->name, c->slices, p->name);
		code = copy(text, name, length);
	});
}

// part_memory returns the memory of a MIG device and what its processes use of it, in MiB.
static int part_memory(void *part, u64 *total, u64 *used) {
	PART(part, {
		*total = d->profile[g->profile].mib;
		*used = 0;
		for (int i = 0; i < d->processes; i++)
			if (d->process[i].instance == g->id && d->process[i].mib > 0) *used += d->process[i].mib;
	});
}

int nvmlInit_v2(void) {
	struct state *s = read_state();
	int code = s->init ? s->init : s->fail;
	free(s);
	if (code != OK) return code;
	pthread_mutex_lock(&lock);
	inits++;
	pthread_mutex_unlock(&lock);
	return OK;
}

int nvmlInit(void) { return nvmlInit_v2(); }

int nvmlInitWithFlags(unsigned flags) {
	(void)flags;
	return nvmlInit_v2();
}

int nvmlShutdown(void) {
	int code = OK;
	pthread_mutex_lock(&lock);
	if (inits == 0) code = UNINITIALIZED;
	else inits--;
	pthread_mutex_unlock(&lock);
	return code;
}

const char *nvmlErrorString(int code) {
	switch (code) {
	case OK: return "Success";
	case UNINITIALIZED: return "Uninitialized";
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NOT_SUPPORTED: return "Not Supported";
	case NO_PERMISSION: return "Insufficient Permissions";
	case NOT_FOUND: return "Not Found";
	case INSUFFICIENT_SIZE: return "Insufficient Size";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case TIMEOUT: return "Timeout";
	case GPU_IS_LOST: return "GPU is lost";
	case RESET_REQUIRED: return "GPU requires reset";
	case IN_USE: return "In use by another client";
	case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
	case 18: return "RM has detected an NVML/RM version mismatch.";
	default: return "Unknown Error";
	}
}

static int copy(const char *from, char *to, unsigned length) {
	if (!to) return INVALID_ARGUMENT;
	if (strlen(from) + 1 > length) return INSUFFICIENT_SIZE;
	strcpy(to, from);
	return OK;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
	if (!initialized()) return UNINITIALIZED;
	struct state *s = read_state();
	int code = s->fail ? s->fail : copy(s->driver, version, length);
	free(s);
	return code;
}

int nvmlSystemGetCudaDriverVersion(int *version) {
	struct state *s = read_state();
	*version = s->cuda;
	free(s);
	return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

int nvmlDeviceGetCount_v2(unsigned *count) {
	if (!initialized()) return UNINITIALIZED;
	struct state *s = read_state();
	int code = s->fail;
	*count = s->count;
	free(s);
	return code;
}

int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlGetExcludedDeviceCount(unsigned *count) {
	struct state *s = read_state();
	*count = s->excluded;
	free(s);
	return OK;
}

static void fill_pci(const char *address, struct pci *p);

int nvmlGetExcludedDeviceInfoByIndex(unsigned index, struct excluded *e) {
	struct state *s = read_state();
	int code = index < (unsigned)s->excluded ? OK : INVALID_ARGUMENT;
	if (code == OK) {
		memset(e, 0, sizeof *e);
		fill_pci(s->exclude[index], &e->pci);
	}
	free(s);
	return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
	if (index >= MAX_DEVICES) return INVALID_ARGUMENT;
	ANSWER(&handles[index], *handle = &handles[index]);
}

int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
	if (!initialized()) return UNINITIALIZED;
	struct state *s = read_state();
	int code = NOT_FOUND;
	char text[96];
	for (int i = 0; i < s->count; i++) {
		struct mig *m = &s->device[i].instances;
		for (int j = 0; j < m->instances; j++)
			for (int k = 0; k < m->instance[j].computes; k++) {
				part_uuid(&s->device[i], &m->instance[j], &m->instance[j].compute[k], text);
				if (!strcmp(text, uuid)) {
					*handle = &part_handles[i][m->instance[j].id][m->instance[j].compute[k].id];
					code = OK;
				}
			}
		if (s->device[i].present && !strcmp(s->device[i].uuid, uuid)) {
			*handle = &handles[i];
			code = s->device[i].lost ? GPU_IS_LOST : OK;
		}
	}
	free(s);
	return code;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) { ANSWER(handle, *index = (char *)handle - handles); }
int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
	if (is_part(handle)) return part_get_name(handle, name, length);
	ANSWER(handle, code = copy(d->name, name, length));
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
	if (is_part(handle)) return part_get_uuid(handle, uuid, length);
	ANSWER(handle, code = copy(d->uuid, uuid, length));
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { ANSWER(handle, *minor = d->minor); }

// The compute mode of a GPU is not in the state file, which tests write, but in a file beside it.
static FILE *open_mode(void *handle, const char *how) { return open_beside("compute-mode", (char *)handle - handles, how); }

int nvmlDeviceGetComputeMode(void *handle, int *mode) {
	ANSWER(handle, {
		FILE *f = open_mode(handle, "re");
		*mode = 0;
		if (f) {
			if (fscanf(f, "%d", mode) != 1) *mode = 0;
			fclose(f);
		}
	});
}

int nvmlDeviceSetComputeMode(void *handle, int mode) {
	ANSWER(handle, {
		FILE *f = lacks(d, "set-compute-mode") ? NULL : open_mode(handle, "we");
		code = NO_PERMISSION;
		if (f) {
			fprintf(f, "%d\n", mode);
			fclose(f);
			code = OK;
		}
	});
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *m) {
	if (is_part(handle)) {
		int code = part_memory(handle, &m->total, &m->used);
		m->total *= MIB;
		m->used *= MIB;
		m->free = m->total - m->used;
		return code;
	}
	ANSWER(handle, {
		if (lacks(d, "memory")) code = NOT_SUPPORTED;
		m->total = d->total * MIB;
		m->used = (d->used + d->reserved) * MIB;
		m->free = m->total - m->used;
	});
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *m) {
	if (m->version != (sizeof *m | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
	if (is_part(handle)) {
		int code = part_memory(handle, &m->total, &m->used);
		m->total *= MIB;
		m->used *= MIB;
		m->reserved = 0;
		m->free = m->total - m->used;
		return code;
	}
	ANSWER(handle, {
		if (lacks(d, "memory")) code = NOT_SUPPORTED;
		m->total = d->total * MIB;
		m->reserved = d->reserved * MIB;
		m->used = d->used * MIB;
		m->free = m->total - m->used - m->reserved;
	});
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
	ANSWER(handle, {
		*major = d->major;
		*minor = d->minor_capability;
	});
}

static void fill_pci(const char *address, struct pci *p) {
	memset(p, 0, sizeof *p);
	snprintf(p->bus_id, sizeof p->bus_id, "%s", address);
	sscanf(address, "%x:%x:%x", &p->domain, &p->bus, &p->device);
	snprintf(p->legacy, sizeof p->legacy, "%04x:%02x:%02x.0", p->domain & 0xffff, p->bus & 0xff, p->device & 0x1f);
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *p) { ANSWER(handle, fill_pci(d->pci, p)); }

// peer returns the device at the other end of an NVLink, -1 for a switch, and -2 if there is no such link. The links to devices come first.
static int peer(struct device *d, unsigned link) {
	unsigned n = 0;
	for (int i = 0; i < MAX_DEVICES; i++) {
		n += d->nvlinks[i];
		if (link < n) return i;
	}
	return link < n + d->nvswitch ? -1 : -2;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active) {
	ANSWER(handle, {
		if (link >= MAX_NVLINKS) code = INVALID_ARGUMENT;
		else if (peer(d, 0) == -2) code = NOT_SUPPORTED;
		else *active = peer(d, link) != -2;
	});
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci *p) {
	ANSWER(handle, {
		int to = link < MAX_NVLINKS ? peer(d, link) : -2;
		if (to == -2) code = INVALID_ARGUMENT;
		else fill_pci(to == -1 ? "00000000:C7:00.0" : s->device[to].pci, p);
	});
}

int nvmlDeviceGetTopologyCommonAncestor(void *handle, void *other, int *level) {
	ANSWER(handle, {
		long index = (char *)other - handles;
		if (index < 0 || index >= MAX_DEVICES) code = INVALID_ARGUMENT;
		else if (d->level[index] < 0) code = NOT_SUPPORTED;
		else *level = d->level[index];
	});
}

int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *u) {
	ANSWER(handle, {
		if (lacks(d, "utilization") || d->mig == 1) code = NOT_SUPPORTED;
		else {
			u->gpu = d->gpu_percent;
			u->memory = d->memory_percent;
		}
	});
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) {
	ANSWER(handle, {
		if (sensor != 0) code = INVALID_ARGUMENT;
		else if (lacks(d, "temperature")) code = NOT_SUPPORTED;
		else *celsius = d->celsius;
	});
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
	ANSWER(handle, {
		if (lacks(d, "power")) code = NOT_SUPPORTED;
		else *milliwatts = d->milliwatts;
	});
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, u64 *millijoules) {
	ANSWER(handle, {
		if (lacks(d, "power")) code = NOT_SUPPORTED;
		else *millijoules = d->millijoules;
	});
}

int nvmlDeviceGetClockInfo(void *handle, int type, unsigned *mhz) {
	ANSWER(handle, {
		if (lacks(d, "clocks")) code = NOT_SUPPORTED;
		else if (type == 0 || type == 1) *mhz = d->sm_mhz;
		else if (type == 2) *mhz = d->memory_mhz;
		else code = NOT_SUPPORTED;
	});
}

// A driver that does not know a field says so in the field, and answers the others.
int nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields) {
	ANSWER(handle, {
		for (int i = 0; i < count; i++) {
			fields[i].code = fields[i].id == FIELD_RECOVERY && !lacks(d, "recovery") ? OK : NOT_SUPPORTED;
			fields[i].type = 1;
			fields[i].value.u = d->recovery;
		}
	});
}

static u64 process_bytes(struct process *p) { return p->mib < 0 ? NOT_AVAILABLE : (u64)p->mib * MIB; }

// parent returns the GPU of a handle, and in *only the number of its GPU instance, or -1 for a whole GPU.
static void *parent(void *handle, int *only) {
	*only = -1;
	if (!is_part(handle)) return handle;
	long offset = (char *)handle - &part_handles[0][0][0];
	*only = offset / MAX_COMPUTE % 64;
	return &handles[offset / MAX_COMPUTE / 64];
}

// PROCESSES answers the calls that list processes of a kind: *count is the room on the way in and the number of them on the way out.
#define PROCESSES(handle, wanted, count, infos, ...) \
	int only; \
	void *whole = parent(handle, &only); \
	ANSWER(whole, { \
		unsigned room = *count, found = 0; \
		if (lacks(d, "processes")) code = NOT_SUPPORTED; \
		else { \
			for (int i = 0; i < d->processes; i++) { \
				struct process *p = &d->process[i]; \
				if (strcmp(p->kind, wanted) || (only >= 0 && p->instance != only)) continue; \
				if (found < room && infos) { __VA_ARGS__; } \
				found++; \
			} \
			*count = found; \
			if (found > room) code = INSUFFICIENT_SIZE; \
		} \
	})

static int list_v1(void *handle, const char *kind, unsigned *count, struct process_v1 *infos) {
	PROCESSES(handle, kind, count, infos, (infos[found] = (struct process_v1){p->pid, process_bytes(p)}));
}

static int list_v3(void *handle, const char *kind, unsigned *count, struct process_v2 *infos) {
	PROCESSES(handle, kind, count, infos, (infos[found] = (struct process_v2){p->pid, process_bytes(p), p->instance, p->compute}));
}

#define LISTS(name, kind) \
	int nvmlDeviceGet##name##RunningProcesses(void *h, unsigned *n, struct process_v1 *p) { return list_v1(h, kind, n, p); } \
	int nvmlDeviceGet##name##RunningProcesses_v2(void *h, unsigned *n, struct process_v2 *p) { return list_v3(h, kind, n, p); } \
	int nvmlDeviceGet##name##RunningProcesses_v3(void *h, unsigned *n, struct process_v2 *p) { return list_v3(h, kind, n, p); }

LISTS(Compute, "compute")
LISTS(Graphics, "graphics")
LISTS(MPSCompute, "mps")

// A process whose share is negative has no sample, as one that only just started.
int nvmlDeviceGetProcessUtilization(void *handle, struct sample *samples, unsigned *count, u64 last_seen) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	u64 micros = (u64)now.tv_sec * 1000000 + now.tv_nsec / 1000;
	ANSWER(handle, {
		unsigned room = samples ? *count : 0;
		unsigned found = 0;
		if (lacks(d, "process-utilization") || d->mig == 1) code = NOT_SUPPORTED;
		else {
			for (int i = 0; i < d->processes && micros > last_seen; i++) {
				struct process *p = &d->process[i];
				if (p->sm < 0) continue;
				if (found < room) samples[found] = (struct sample){p->pid, micros, p->sm, 0, 0, 0};
				found++;
			}
			*count = found;
			if (found == 0) code = NOT_FOUND;
			else if (found > room) code = INSUFFICIENT_SIZE;
		}
	});
}

int nvmlDeviceGetSupportedEventTypes(void *handle, u64 *types) {
	ANSWER(handle, *types = lacks(d, "events") ? 0 : EVENT_SINGLE_BIT | EVENT_DOUBLE_BIT | EVENT_XID);
}

int nvmlEventSetCreate(void **set) {
	if (!initialized()) return UNINITIALIZED;
	struct state *s = read_state();
	int code = s->fail ? s->fail : OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX_SETS && code == OUT_OF_MEMORY; i++)
		if (!sets[i].used) {
			memset(&sets[i], 0, sizeof sets[i]);
			sets[i].used = 1;
			sets[i].seen = s->xids; // What happened before is not told.
			*set = &sets[i];
			code = OK;
		}
	pthread_mutex_unlock(&lock);
	free(s);
	return code;
}

static struct set *find_set(void *handle) {
	struct set *set = handle;
	if (set < sets || set >= sets + MAX_SETS || !set->used) return NULL;
	return set;
}

int nvmlEventSetFree(void *handle) {
	pthread_mutex_lock(&lock);
	struct set *set = find_set(handle);
	if (set) set->used = 0;
	pthread_mutex_unlock(&lock);
	return set ? OK : INVALID_ARGUMENT;
}

int nvmlDeviceRegisterEvents(void *handle, u64 types, void *set_handle) {
	ANSWER(handle, {
		pthread_mutex_lock(&lock);
		struct set *set = find_set(set_handle);
		if (!set) code = INVALID_ARGUMENT;
		else if (lacks(d, "events")) code = NOT_SUPPORTED;
		else set->types[(char *)handle - handles] |= types;
		pthread_mutex_unlock(&lock);
	});
}

// next_event takes the next line "xid" that the set has not told yet. A device of -1 is one that cannot be named.
static int next_event(struct set *set, struct state *s, struct event *e) {
	if (set->seen > s->xids) set->seen = s->xids;
	while (set->seen < s->xids) {
		int device = s->xid[set->seen].device, xid = s->xid[set->seen].xid;
		set->seen++;
		if (device >= MAX_DEVICES || (device >= 0 && !(set->types[device] & EVENT_XID))) continue;
		*e = (struct event){device < 0 ? NULL : &handles[device], EVENT_XID, xid, s->xid[set->seen - 1].instance, s->xid[set->seen - 1].compute};
		return OK;
	}
	for (int i = 0; i < s->count; i++)
		if (set->types[i] && s->device[i].lost) return GPU_IS_LOST;
	return TIMEOUT;
}

int nvmlEventSetWait_v2(void *handle, struct event *e, unsigned timeout_ms) {
	for (unsigned waited = 0;; waited += 5) {
		if (!initialized()) return UNINITIALIZED;
		struct state *s = read_state();
		pthread_mutex_lock(&lock);
		struct set *set = find_set(handle);
		int code = set ? next_event(set, s, e) : INVALID_ARGUMENT;
		pthread_mutex_unlock(&lock);
		free(s);
		if (code != TIMEOUT || waited >= timeout_ms) return code;
		nanosleep(&(struct timespec){0, 5000000}, NULL);
	}
}

int nvmlEventSetWait(void *handle, struct event *e, unsigned timeout_ms) { return nvmlEventSetWait_v2(handle, e, timeout_ms); }

#include "mig.c"
#include "gpm.c"
