package replay

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Record is a pod of a recorded trace.
type Record struct {
	MilliCPU, MemoryBytes int64
	// Replicas is the number of replicas of shared GPUs that the pod requests. GPUMemoryBytes is the device memory that it requests, or 0.
	Replicas, GPUMemoryBytes int64
	// Arrives and Ends count from the start of the trace.
	Arrives, Ends time.Duration
}

// Recording is what is known of the pods of a time.
type Recording struct {
	// Records are ordered by arrival. Their times count from Start.
	Records []Record
	// Left are the pods and lines that are left out.
	Left       []Left
	Start, End time.Time
	// Late and Early are how much later and earlier than requested it starts and ends, for lack of metrics.
	Late, Early time.Duration
	// Gaps are the times between Start and End without metrics of any pods. Pods that were seen before and after a gap count as running in it.
	Gaps [][2]time.Time
	// Dated reports whether the creation or start of pods was observed, and Phased whether their phases were.
	Dated, Phased bool
}

// Duration returns how long the recording is.
func (r *Recording) Duration() time.Duration { return r.End.Sub(r.Start) }

// Left counts pods or lines of a trace that are left out for one reason.
type Left struct {
	Count  int    `json:"count"`
	Reason string `json:"reason"`
	// First is where the first of them is, such as "line 7".
	First string `json:"first"`
}

// lefts collects what is left out.
type lefts []Left

func (l *lefts) add(reason, where string) {
	for i := range *l {
		if (*l)[i].Reason == reason {
			(*l)[i].Count++
			return
		}
	}
	if len(*l) >= maxReasons && reason != otherReasons {
		l.add(otherReasons, where)
		return
	}
	*l = append(*l, Left{1, reason, where})
}

const (
	// maxReasons is the maximum number of reasons that are told apart, beside otherReasons.
	maxReasons   = 100
	otherReasons = "other reasons"
	// maxPods is the maximum number of pods. Names of pods, which sort in the order of arrival, have six digits.
	maxPods = 1_000_000
	// maxTrace is the maximum size of a file in bytes, after it is decompressed.
	maxTrace = 256 << 20
	// maxSeconds is 285 years. A time.Duration holds 292 years.
	maxSeconds = 9_000_000_000
	// maxMilliCPU and maxMiB are more than any machine has.
	maxMilliCPU = 1_000_000_000
	maxMiB      = 1 << 40
	// shareMiB is the memory of the GPU of which a pod of a CSV trace requests thousandths: that of a T4.
	shareMiB = 16384
)

// columns are the columns of a CSV trace that are read, as in the openb trace (Weng et al., USENIX ATC 2023).
var columns = []string{"cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time"}

// ReadCSV reads a trace in the format of the openb trace: a header, then a line for each pod. It may be compressed with gzip. Columns may be in any
// order, and there may be others. Times are in seconds. A pod that was not deleted runs to the last time in the trace. Each pod requests one replica,
// and the same share of 16 GiB of device memory as of a GPU (gpu_milli). Lines that cannot be read, and pods that share no GPU, are left out.
// Invalid quotes are an error.
func ReadCSV(in io.Reader) (Recording, error) { return readCSV(in, maxTrace, maxPods) }

func readCSV(in io.Reader, bytes int64, pods int) (Recording, error) {
	text, err := textOf(in)
	if err != nil {
		return Recording{}, err
	}
	left := &io.LimitedReader{R: text, N: bytes + 1}
	lines := csv.NewReader(left)
	lines.FieldsPerRecord, lines.ReuseRecord = -1, true
	var r csvReader
	for {
		values, err := lines.Read()
		switch {
		case left.N <= 0:
			return Recording{}, fmt.Errorf("there are more than %d MiB", bytes>>20)
		case errors.Is(err, io.EOF) && r.at == nil:
			return Recording{}, errors.New("it is empty")
		case errors.Is(err, io.EOF):
			return r.recording(), nil
		case err != nil:
			return Recording{}, err
		}
		for i := range values {
			values[i] = strings.TrimSpace(values[i])
		}
		line, _ := lines.FieldPos(0)
		switch {
		case len(values) == 1 && values[0] == "": // A blank line.
		case r.at == nil:
			if err := r.header(values); err != nil {
				return Recording{}, fmt.Errorf("line %d, the header, %w", line, err)
			}
		default:
			if reason := r.pod(values); reason != "" {
				r.left.add(reason, fmt.Sprintf("line %d", line))
			}
		}
		if len(r.pods) > pods {
			return Recording{}, fmt.Errorf("line %d: there are more than %d pods", line, pods)
		}
	}
}

// textOf returns a reader of the text, decompressed and without a byte order mark.
func textOf(in io.Reader) (*bufio.Reader, error) {
	text := bufio.NewReader(in)
	if magic, err := text.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(text)
		if err != nil {
			return nil, fmt.Errorf("decompressing it: %w", err)
		}
		text = bufio.NewReader(z)
	}
	if mark, err := text.Peek(3); err == nil && string(mark) == "\ufeff" {
		_, _ = text.Discard(len(mark))
	}
	return text, nil
}

type csvReader struct {
	// at has the index of each column. fields is the number of fields of a line.
	at     []int
	fields int
	pods   []csvPod
	left   lefts
}

// csvPod is a pod with its times in seconds. ends is -1 if it was not deleted.
type csvPod struct {
	record        Record
	arrives, ends int64
}

func (r *csvReader) header(names []string) error {
	r.fields = len(names)
	for _, column := range columns {
		i := slices.Index(names, column)
		if i < 0 {
			return fmt.Errorf("has no column %s: it needs %s", column, strings.Join(columns, ", "))
		}
		r.at = append(r.at, i)
	}
	return nil
}

// pod reads a line. It returns why the line is left out, or "" if it is not.
func (r *csvReader) pod(values []string) string {
	if len(values) != r.fields {
		return fmt.Sprintf("%d fields, but the header has %d", len(values), r.fields)
	}
	var n [6]int64
	for i, column := range columns {
		text := values[r.at[i]]
		if text == "" && column == "deletion_time" {
			n[i] = -1
			continue
		}
		var err error
		if n[i], err = number(text); err != nil {
			return fmt.Sprintf("%s %s", column, err)
		}
	}
	cpu, memory, gpus, share, arrives, ends := n[0], n[1], n[2], n[3], n[4], n[5]
	switch {
	case cpu > maxMilliCPU || memory > maxMiB || arrives > maxSeconds || ends > maxSeconds || gpus > 1_000_000:
		return "a number is implausibly large"
	case ends >= 0 && ends < arrives:
		return "deletion_time is before creation_time"
	case gpus == 0 || share == 0:
		return "the pod requests no GPU"
	case gpus > 1 || share >= 1000:
		return "the pod requests whole GPUs, which cost the same with and without sharing"
	}
	r.pods = append(r.pods, csvPod{Record{MilliCPU: cpu, MemoryBytes: memory << 20, Replicas: 1, GPUMemoryBytes: (share*shareMiB + 999) / 1000 << 20}, arrives, ends})
	return ""
}

// number reads a whole number that is not negative. Some traces write 12.0.
func number(text string) (int64, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n < 0 || strings.Trim(fraction, "0") != "" {
		return 0, errors.New("is not a whole number of 0 or more")
	}
	return n, nil
}

// recording returns the pods, with times from the arrival of the first of them until the last time of the trace.
func (r *csvReader) recording() Recording {
	if len(r.pods) == 0 {
		return Recording{Left: r.left}
	}
	first, last := r.pods[0].arrives, int64(0)
	for _, p := range r.pods {
		first, last = min(first, p.arrives), max(last, p.arrives+1, p.ends)
	}
	records := make([]Record, 0, len(r.pods))
	for _, p := range r.pods {
		if p.ends < 0 {
			p.ends = last
		}
		p.record.Arrives, p.record.Ends = time.Duration(p.arrives-first)*time.Second, time.Duration(max(p.ends, p.arrives+1)-first)*time.Second
		records = append(records, p.record)
	}
	return Recording{Records: sorted(records), Left: r.left, Start: time.Unix(first, 0), End: time.Unix(last, 0)}
}

func sorted(records []Record) []Record {
	slices.SortStableFunc(records, func(a, b Record) int { return int(a.Arrives - b.Arrives) })
	return records
}
