// The calls of NVML that divide GPUs and read their instances.

struct placement { unsigned start, size; };
struct profile_info { unsigned id, p2p, slices, count, sms, copies, decoders, encoders, jpegs, ofas; u64 mib; };
struct instance_info { void *device; unsigned id, profile; struct placement placement; };
struct compute_profile_info { unsigned id, slices, count, sms, copies, decoders, encoders, jpegs, ofas; };
struct compute_info { void *device, *instance; unsigned id, profile; struct placement placement; };
struct attributes { unsigned sms, copies, decoders, encoders, jpegs, ofas, instance_slices, compute_slices; u64 mib; };

static char instance_handles[MAX_DEVICES][64];
static char compute_handles[MAX_DEVICES][64][MAX_COMPUTE];

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
	ANSWER(handle, {
		if (d->mig < 0) code = NOT_SUPPORTED;
		else {
			*current = d->mig;
			*pending = d->instances.pending;
		}
	});
}

// Setting the mode takes effect at once, or with the next reset if the state file has the line "mig-reset".
int nvmlDeviceSetMigMode(void *handle, unsigned mode, int *activation) {
	ANSWER(handle, {
		*activation = OK;
		if (d->mig < 0) code = NOT_SUPPORTED;
		else if (lacks(d, "set-mig-mode")) code = NO_PERMISSION;
		else if (d->processes || lacks(d, "idle") || (!mode && d->instances.instances)) *activation = IN_USE;
		else {
			d->instances.pending = mode;
			if ((int)mode != d->mig && d->mig_reset) *activation = RESET_REQUIRED;
			else d->mig = mode;
			code = write_mig(&d->instances, d->mig, (char *)handle - handles);
		}
	});
}

static struct profile *profile_with(struct device *d, unsigned id) {
	for (int i = 0; i < d->profiles; i++)
		if ((unsigned)d->profile[i].id == id) return &d->profile[i];
	return NULL;
}

int nvmlDeviceGetGpuInstanceProfileInfo(void *handle, unsigned number, struct profile_info *info) {
	if (number >= MAX_PROFILES) return INVALID_ARGUMENT;
	ANSWER(handle, {
		code = NOT_SUPPORTED;
		for (int i = 0; i < d->profiles; i++) {
			struct profile *p = &d->profile[i];
			if ((unsigned)p->number != number) continue;
			*info = (struct profile_info){p->id, 0, p->slices, p->count, p->sms, p->copies, p->decoders, p->encoders, p->jpegs, p->ofas, p->mib};
			code = OK;
		}
	});
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *handle, unsigned id, struct placement *placements, unsigned *count) {
	ANSWER(handle, {
		struct profile *p = profile_with(d, id);
		unsigned room = *count;
		if (!p) code = NOT_SUPPORTED;
		else if (placements && room < (unsigned)p->starts) code = INSUFFICIENT_SIZE;
		else {
			*count = p->starts;
			for (int i = 0; placements && i < p->starts; i++) placements[i] = (struct placement){p->start[i], p->size};
		}
	});
}

int nvmlDeviceGetGpuInstancePossiblePlacements(void *h, unsigned id, struct placement *p, unsigned *n) { return nvmlDeviceGetGpuInstancePossiblePlacements_v2(h, id, p, n); }

// number_of is the number of a GPU instance, which depends on its place, as on real GPUs.
static int number_of(struct profile *p, int start) {
	switch (p->size) {
	case 8: return 0;
	case 4: return 1 + start / 4;
	case 2: return 3 + start / 2;
	default: return 7 + start;
	}
}

static int create(struct device *d, struct profile *p, int start, long index, void **instance) {
	int used = p->slices, of_kind = 1;
	int largest = 0, possible = 0;
	for (int i = 0; i < d->profiles; i++) largest = d->profile[i].slices > largest ? d->profile[i].slices : largest;
	for (int i = 0; i < p->starts; i++) possible |= p->start[i] == start;
	if (!possible) return INVALID_ARGUMENT;
	for (int i = 0; i < d->instances.instances; i++) {
		struct gpu_instance *g = &d->instances.instance[i];
		struct profile *other = &d->profile[g->profile];
		if (start < g->start + g->size && g->start < start + p->size) return INSUFFICIENT_RESOURCES;
		used += other->slices;
		of_kind += other == p;
	}
	if (used > largest || of_kind > p->count || d->instances.instances == MAX_INSTANCES) return INSUFFICIENT_RESOURCES;
	struct gpu_instance *g = &d->instances.instance[d->instances.instances++];
	*g = (struct gpu_instance){.id = number_of(p, start), .profile = p - d->profile, .start = start, .size = p->size};
	*instance = &instance_handles[index][g->id];
	return write_mig(&d->instances, d->mig, index);
}

int nvmlDeviceCreateGpuInstanceWithPlacement(void *handle, unsigned id, const struct placement *placement, void **instance) {
	ANSWER(handle, {
		struct profile *p = profile_with(d, id);
		if (d->mig != 1 || lacks(d, "create-instance")) code = d->mig != 1 ? NOT_SUPPORTED : NO_PERMISSION;
		else if (!p || placement->size != (unsigned)p->size) code = INVALID_ARGUMENT;
		else code = create(d, p, placement->start, (char *)handle - handles, instance);
	});
}

// Without a placement, it takes the first that is free.
int nvmlDeviceCreateGpuInstance(void *handle, unsigned id, void **instance) {
	ANSWER(handle, {
		struct profile *p = profile_with(d, id);
		code = d->mig != 1 ? NOT_SUPPORTED : p ? INSUFFICIENT_RESOURCES : INVALID_ARGUMENT;
		for (int i = 0; p && code == INSUFFICIENT_RESOURCES && i < p->starts; i++) code = create(d, p, p->start[i], (char *)handle - handles, instance);
	});
}

int nvmlDeviceGetGpuInstances(void *handle, unsigned id, void **instances, unsigned *count) {
	ANSWER(handle, {
		struct profile *p = profile_with(d, id);
		unsigned found = 0;
		if (d->mig != 1 || !p) code = d->mig != 1 ? NOT_SUPPORTED : INVALID_ARGUMENT;
		for (int i = 0; code == OK && i < d->instances.instances; i++)
			if (&d->profile[d->instances.instance[i].profile] == p) instances[found++] = &instance_handles[(char *)handle - handles][d->instances.instance[i].id];
		*count = found;
	});
}

// WITHIN runs what follows with the GPU instance g of a handle.
#define WITHIN(handle, ...) \
	do { \
		long place = (char *)(handle) - &instance_handles[0][0]; \
		long index = place / 64; \
		if (place < 0 || index >= MAX_DEVICES) return INVALID_ARGUMENT; \
		ANSWER(&handles[index], { \
			struct gpu_instance *g = NULL; \
			for (int i = 0; i < d->instances.instances; i++) \
				if (d->instances.instance[i].id == place % 64) g = &d->instances.instance[i]; \
			if (!g) code = INVALID_ARGUMENT; \
			else { __VA_ARGS__; } \
		}); \
	} while (0)

static int runs_on(struct device *d, struct gpu_instance *g) {
	for (int i = 0; i < d->processes; i++)
		if (d->process[i].instance == g->id) return 1;
	return 0;
}

int nvmlGpuInstanceDestroy(void *instance) {
	WITHIN(instance, {
		if (g->computes || runs_on(d, g)) code = IN_USE;
		else {
			*g = d->instances.instance[--d->instances.instances];
			code = write_mig(&d->instances, d->mig, index);
		}
	});
}

int nvmlGpuInstanceGetInfo(void *instance, struct instance_info *info) {
	WITHIN(instance, (*info = (struct instance_info){&handles[index], g->id, d->profile[g->profile].id, {g->start, g->size}}));
}

// compute_slices are those of the compute profiles, by number.
static const int compute_slices[] = {1, 2, 3, 4, 7, 8, 6};

int nvmlGpuInstanceGetComputeInstanceProfileInfo(void *instance, unsigned number, unsigned engines, struct compute_profile_info *info) {
	if (engines != 0) return NOT_SUPPORTED;
	WITHIN(instance, {
		struct profile *p = &d->profile[g->profile];
		if (number >= sizeof compute_slices / sizeof *compute_slices || compute_slices[number] > p->slices) code = NOT_SUPPORTED;
		else {
			int slices = compute_slices[number];
			*info = (struct compute_profile_info){number, slices, p->slices / slices, p->sms * slices / p->slices, p->copies, p->decoders, p->encoders, p->jpegs, p->ofas};
		}
	});
}

int nvmlGpuInstanceCreateComputeInstance(void *instance, unsigned id, void **compute) {
	WITHIN(instance, {
		int used = 0;
		int next = 0;
		for (int i = 0; i < g->computes; i++) {
			used += g->compute[i].slices;
			if (g->compute[i].id >= next) next = g->compute[i].id + 1;
		}
		if (id >= sizeof compute_slices / sizeof *compute_slices) code = INVALID_ARGUMENT;
		else if (lacks(d, "create-compute")) code = NO_PERMISSION;
		else if (used + compute_slices[id] > d->profile[g->profile].slices || next >= MAX_COMPUTE) code = INSUFFICIENT_RESOURCES;
		else {
			g->compute[g->computes++] = (struct compute_instance){next, compute_slices[id]};
			*compute = &compute_handles[index][g->id][next];
			code = write_mig(&d->instances, d->mig, index);
		}
	});
}

int nvmlGpuInstanceGetComputeInstances(void *instance, unsigned id, void **computes, unsigned *count) {
	WITHIN(instance, {
		unsigned found = 0;
		if (id >= sizeof compute_slices / sizeof *compute_slices) code = INVALID_ARGUMENT;
		for (int i = 0; code == OK && i < g->computes; i++)
			if (g->compute[i].slices == compute_slices[id]) computes[found++] = &compute_handles[index][g->id][g->compute[i].id];
		*count = found;
	});
}

int nvmlComputeInstanceDestroy(void *compute) {
	long offset = (char *)compute - &compute_handles[0][0][0];
	if (offset < 0 || offset / MAX_COMPUTE / 64 >= MAX_DEVICES) return INVALID_ARGUMENT;
	WITHIN(&instance_handles[0][0] + offset / MAX_COMPUTE, {
		code = runs_on(d, g) ? IN_USE : INVALID_ARGUMENT;
		for (int i = 0; code == INVALID_ARGUMENT && i < g->computes; i++)
			if (g->compute[i].id == offset % MAX_COMPUTE) {
				g->compute[i] = g->compute[--g->computes];
				code = write_mig(&d->instances, d->mig, index);
			}
	});
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
	ANSWER(handle, {
		*count = 0;
		for (int i = 0; i < d->profiles; i++)
			if ((unsigned)d->profile[i].count > *count) *count = d->profile[i].count;
	});
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned number, void **part) {
	ANSWER(handle, {
		unsigned n = 0;
		code = d->mig == 1 ? NOT_FOUND : NOT_SUPPORTED;
		for (int i = 0; code == NOT_FOUND && i < d->instances.instances; i++)
			for (int j = 0; code == NOT_FOUND && j < d->instances.instance[i].computes; j++)
				if (n++ == number) {
					*part = &part_handles[(char *)handle - handles][d->instances.instance[i].id][d->instances.instance[i].compute[j].id];
					code = OK;
				}
	});
}

int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *is) {
	*is = is_part(handle);
	return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *part, void **handle) { PART(part, *handle = &handles[index]); }
int nvmlDeviceGetGpuInstanceId(void *part, unsigned *id) { PART(part, *id = g->id); }
int nvmlDeviceGetComputeInstanceId(void *part, unsigned *id) { PART(part, *id = c->id); }

int nvmlDeviceGetAttributes_v2(void *part, struct attributes *a) {
	PART(part, {
		struct profile *p = &d->profile[g->profile];
		*a = (struct attributes){p->sms * c->slices / p->slices, p->copies, p->decoders, p->encoders, p->jpegs, p->ofas, p->slices, c->slices, p->mib};
	});
}

int nvmlDeviceGetAttributes(void *part, struct attributes *a) { return nvmlDeviceGetAttributes_v2(part, a); }
