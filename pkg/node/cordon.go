package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/words"
)

// cordon is the state of the GPUs that accept no new pods, because an annotation of the Node names them.
type cordon struct {
	mu sync.Mutex
	// reported reports whether the Node has had the condition, so that it must be kept up to date.
	reported bool
	// gpus maps the values in the annotation that name a GPU to the GPU. unknown are the values that name none.
	gpus    map[string]gpu.Device
	unknown []string
}

// count returns the number of cordoned GPUs.
func (c *cordon) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(uuidsOf(c.gpus))
}

// resolve returns the GPUs that an annotation names, by the values that name them, and the values that name none, in order. A value that named a GPU
// before still names it, because indices change when a GPU is lost.
func resolve(annotation string, devices []gpu.Device, before map[string]gpu.Device) (named map[string]gpu.Device, unknown []string) {
	named = map[string]gpu.Device{}
	known := make(map[string]gpu.Device, 2*len(devices))
	for _, d := range devices {
		known[d.UUID], known[strconv.Itoa(d.Index)] = d, d
	}
	maps.Copy(known, before)
	seen := map[string]bool{"": true}
	for value := range strings.SplitSeq(annotation, ",") {
		value = strings.TrimSpace(value)
		if seen[value] {
			continue
		}
		seen[value] = true
		if d, ok := known[value]; ok {
			named[value] = d
		} else {
			unknown = append(unknown, value)
		}
	}
	return named, unknown
}

// cordonGPUs applies the annotation to the GPUs of the node, and reports what has changed.
func (a *Agent) cordonGPUs(ctx context.Context, devices []gpu.Device) {
	if len(devices) == 0 {
		return // Which GPUs the annotation names is unknown so far.
	}
	n, _ := a.latestNode.get()
	had := slices.ContainsFunc(n.Status.Conditions, func(c nodeapi.Condition) bool { return c.Type == nodecontract.CordonCondition })
	c := &a.cordon
	c.mu.Lock()
	before, invalid := c.gpus, c.unknown
	c.gpus, c.unknown = resolve(n.Metadata.Annotations[nodecontract.GPUCordonAnnotation], devices, before)
	now, unknown := c.gpus, c.unknown
	c.reported = c.reported || had || len(now)+len(unknown) > 0
	reported := c.reported
	c.mu.Unlock()

	a.manager.SetCordoned(uuidsOf(now))
	if a.dra.driver != nil {
		a.dra.driver.SetCordoned(uuidsOf(now))
	}
	if !reported {
		return
	}
	if names := namesOf(now, uuidsOf(before)); names != "" {
		a.report.events.tell(ctx, health.Event{Reason: nodecontract.ReasonCordoned, Message: names + " no new pods: " + cordoned})
	}
	if names := namesOf(before, uuidsOf(now)); names != "" {
		a.report.events.tell(ctx, health.Event{Reason: nodecontract.ReasonUncordoned, Message: names + " pods again: " + uncordoned})
	}
	condition := cordonCondition(now, unknown, devices)
	if len(unknown) > 0 && !slices.Equal(unknown, invalid) {
		a.report.events.tell(ctx, health.Event{Warning: true, Reason: nodecontract.ReasonCordonInvalid, Message: invalidCordon(unknown, devices)})
	}
	a.report.condition(condition)
}

func cordonCondition(gpus map[string]gpu.Device, unknown []string, devices []gpu.Device) health.Condition {
	c := health.Condition{Type: nodecontract.CordonCondition, Status: "False", Reason: nodecontract.ReasonUncordoned, Message: "All GPUs may take pods"}
	if len(gpus) > 0 {
		c.Status, c.Reason = "True", nodecontract.ReasonCordoned
		c.Message = namesOf(gpus, nil) + " no new pods, and running pods stay: " + cordoned
	}
	if len(unknown) > 0 {
		c.Reason, c.Message = nodecontract.ReasonCordonInvalid, invalidCordon(unknown, devices)+". "+c.Message
	}
	return c
}

const (
	cordoned   = "the annotation " + nodecontract.GPUCordonAnnotation + " of the Node says so"
	uncordoned = "the annotation " + nodecontract.GPUCordonAnnotation + " of the Node has changed"
)

// maxNamed limits the number of values or GPUs in a message.
const maxNamed = 8

// invalidCordon describes which values in the annotation are not GPUs of the node, and which would be valid.
func invalidCordon(unknown []string, devices []gpu.Device) string {
	var values []string
	for _, value := range unknown {
		values = append(values, fmt.Sprintf("%.64q", value))
	}
	var indices []string
	for _, d := range devices {
		indices = append(indices, strconv.Itoa(d.Index))
	}
	return fmt.Sprintf("%s names %s, and this node has no such GPU: write indices (%s) or UUIDs of nvidia-smi -L, separated by commas",
		nodecontract.GPUCordonAnnotation, words.Named(values, maxNamed), strings.Join(indices, ", "))
}

// namesOf returns the GPUs that are not in except, and a verb, as part of a sentence. It returns "" for none.
func namesOf(gpus map[string]gpu.Device, except map[string]bool) string {
	var all []gpu.Device
	for _, d := range gpus {
		if !except[d.UUID] {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b gpu.Device) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	all = slices.CompactFunc(all, func(a, b gpu.Device) bool { return a.UUID == b.UUID })
	var names []string
	for _, d := range all {
		names = append(names, fmt.Sprintf("%d (%s)", d.Index, d.UUID))
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "GPU " + names[0] + " takes"
	}
	return "GPUs " + words.Named(names, maxNamed) + " take"
}

func uuidsOf(gpus map[string]gpu.Device) map[string]bool {
	uuids := map[string]bool{}
	for _, d := range gpus {
		uuids[d.UUID] = true
	}
	return uuids
}
