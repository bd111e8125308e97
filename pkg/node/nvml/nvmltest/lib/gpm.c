// GPU performance monitoring: the profiling counters of a GPU. Its metrics are those of the line "gpm" when the newer of two samples was taken.

enum { GPM_VERSION = 1, GPM_METRICS = 210 };

// gpm_metrics are NVML's numbers of the values in the line "gpm".
static const unsigned gpm_metrics[MAX_GPM] = {1, 2, 3, 5, 11, 12, 13, 10, 20, 21, 61, 60};

struct gpm_sample { void *device; u64 number; double value[MAX_GPM]; };
struct gpm_metric { unsigned id; int code; double value; char *short_name, *long_name, *unit; };
struct gpm_request { unsigned version, count; struct gpm_sample *older, *newer; struct gpm_metric metrics[GPM_METRICS]; };

// gpm_count adds to the number of allocated samples, which is in a file beside the state file.
static void gpm_count(int change) {
	static int samples;
	pthread_mutex_lock(&lock);
	samples += change;
	FILE *f = open_beside("gpm-samples", getpid(), "we");
	if (f) {
		fprintf(f, "%d\n", samples);
		fclose(f);
	}
	pthread_mutex_unlock(&lock);
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
	if (!initialized()) return UNINITIALIZED;
	*sample = calloc(1, sizeof **sample);
	if (!*sample) abort();
	gpm_count(1);
	return OK;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
	if (!sample) return INVALID_ARGUMENT;
	free(sample);
	gpm_count(-1);
	return OK;
}

int nvmlGpmSampleGet(void *handle, struct gpm_sample *sample) {
	static u64 taken;
	ANSWER(handle, {
		if (d->gpms < MAX_GPM) code = NOT_SUPPORTED;
		else {
			sample->device = handle;
			sample->number = __atomic_add_fetch(&taken, 1, __ATOMIC_SEQ_CST);
			memcpy(sample->value, d->gpm, sizeof d->gpm);
		}
	});
}

// It refuses samples in the wrong order. A negative value is not supported.
int nvmlGpmMetricsGet(struct gpm_request *r) {
	if (r->version != GPM_VERSION) return ARGUMENT_VERSION_MISMATCH;
	if (r->count > GPM_METRICS || !r->older || !r->newer || !r->older->device) return INVALID_ARGUMENT;
	if (r->older->device != r->newer->device || r->older->number >= r->newer->number) return INVALID_ARGUMENT;
	for (unsigned i = 0; i < r->count; i++) {
		r->metrics[i].code = NOT_SUPPORTED;
		for (int j = 0; j < MAX_GPM; j++)
			if (gpm_metrics[j] == r->metrics[i].id && r->newer->value[j] >= 0) {
				r->metrics[i].code = OK;
				r->metrics[i].value = r->newer->value[j];
			}
	}
	return OK;
}
