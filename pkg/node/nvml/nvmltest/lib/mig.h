// The MIG mode and the instances of a GPU. They are not in the state file, which tests write, but in a file beside it, because programs change them. Without
// the file, the mode is what the state file says, and there are no instances.

#pragma once

enum { MAX_PROFILES = 17, MAX_STARTS = 16, MAX_INSTANCES = 16, MAX_COMPUTE = 8 };

// profile is a line "mig-profile".
struct profile {
	int number, id, slices, count, sms, copies, decoders, encoders, jpegs, ofas, size, starts;
	int start[MAX_STARTS];
	long long mib;
	char name[32];
};

struct compute_instance { int id, slices; };

struct gpu_instance {
	int id, profile, start, size, computes; // profile is the place in the device's profiles
	struct compute_instance compute[MAX_COMPUTE];
};

struct mig {
	int pending, instances;
	struct gpu_instance instance[MAX_INSTANCES];
};

// open_beside opens a file beside the state file.
static FILE *open_beside(const char *what, long index, const char *how) {
	const char *path = getenv("KARVE_FAKE_NVML");
	char name[512];
	if (!path) return NULL;
	snprintf(name, sizeof name, "%s.%s.%ld", path, what, index);
	return fopen(name, how);
}

static int by_id(const void *a, const void *b) { return ((const struct gpu_instance *)a)->id - ((const struct gpu_instance *)b)->id; }

// read_mig reads the file of a GPU. *mode is what the state file says, and then what the file says.
static void read_mig(struct mig *m, int *mode, long index) {
	FILE *f = open_beside("mig", index, "re");
	char line[128];
	m->pending = *mode;
	if (!f) return;
	while (fgets(line, sizeof line, f)) {
		struct gpu_instance g = {0};
		struct compute_instance c;
		int of;
		if (sscanf(line, "mode %d %d", mode, &m->pending) == 2) continue;
		if (sscanf(line, "instance %d %d %d %d", &g.id, &g.profile, &g.start, &g.size) == 4 && m->instances < MAX_INSTANCES)
			m->instance[m->instances++] = g;
		if (sscanf(line, "compute %d %d %d", &of, &c.id, &c.slices) == 3)
			for (int i = 0; i < m->instances; i++)
				if (m->instance[i].id == of && m->instance[i].computes < MAX_COMPUTE) m->instance[i].compute[m->instance[i].computes++] = c;
	}
	fclose(f);
	qsort(m->instance, m->instances, sizeof m->instance[0], by_id);
}

// write_mig replaces the file of a GPU. Only one program changes instances at a time.
static int write_mig(struct mig *m, int mode, long index) {
	const char *path = getenv("KARVE_FAKE_NVML");
	char name[512], next[512 + 8];
	FILE *f = open_beside("next", index, "we");
	if (!f) return NO_PERMISSION;
	fprintf(f, "mode %d %d\n", mode, m->pending);
	for (int i = 0; i < m->instances; i++) {
		struct gpu_instance *g = &m->instance[i];
		fprintf(f, "instance %d %d %d %d\n", g->id, g->profile, g->start, g->size);
		for (int j = 0; j < g->computes; j++) fprintf(f, "compute %d %d %d\n", g->id, g->compute[j].id, g->compute[j].slices);
	}
	snprintf(name, sizeof name, "%s.mig.%ld", path, index);
	snprintf(next, sizeof next, "%s.next.%ld", path, index);
	return fclose(f) == 0 && rename(next, name) == 0 ? OK : NO_PERMISSION;
}

static void parse_profile(struct profile *p, char *text) {
	char starts[64] = "";
	if (sscanf(text, "%d %d %d %d %lld %d %d %d %d %d %d %d %63s %31s", &p->number, &p->id, &p->slices, &p->count, &p->mib, &p->sms, &p->copies, &p->decoders,
	           &p->encoders, &p->jpegs, &p->ofas, &p->size, starts, p->name) != 14)
		return;
	for (char *save = NULL, *word = strtok_r(starts, ",", &save); word && p->starts < MAX_STARTS; word = strtok_r(NULL, ",", &save)) p->start[p->starts++] = atoi(word);
}
