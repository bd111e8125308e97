package facts

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Throughput is how much work a pod does on each model of GPU, in thousandths of any unit, by its name as in the label karpenter.k8s.aws/instance-gpu-name. [AnyGPU]
// stands for all others.
type Throughput map[string]int64

// AnyGPU is the name for all models of GPU that a Throughput does not name.
const AnyGPU = "*"

// On returns the throughput on a model of GPU, or 0 if it is not used.
func (t Throughput) On(gpuName string) int64 {
	if n, ok := t[strings.ToLower(gpuName)]; ok {
		return n
	}
	return t[AnyGPU]
}

// Limits of the annotation, which bound the work of a plan and keep prices exact.
const (
	maxThroughputText = 128
	maxThroughputs    = 16
)

// throughputEntry matches a model of GPU with a number from 0.001 to 9999.999.
var throughputEntry = regexp.MustCompile(`^(\*|[a-z0-9][a-z0-9-]{0,62})=([0-9]{1,4})(?:\.([0-9]{1,3}))?$`)

// ThroughputOf returns the throughput that a pod states, or nil if it states none or none that counts. The error says why it does not count, and what to do.
func ThroughputOf(pod *corev1.Pod) (Throughput, error) {
	text, ok := pod.Annotations[v1alpha1.ThroughputAnnotation]
	if !ok {
		return nil, nil //nolint:nilnil // Most pods state none.
	}
	t, err := parseThroughput(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w; the pod is planned without it", v1alpha1.ThroughputAnnotation, err)
	}
	if !followsLoad(pod) {
		return nil, fmt.Errorf("annotation %s is ignored, because no Job owns the pod: with a fixed number of pods, faster GPUs only cost more. If an autoscaler sets the number of pods by their load, "+
			"annotate the pod template with %s=true", v1alpha1.ThroughputAnnotation, v1alpha1.FollowsLoadAnnotation)
	}
	return t, nil
}

// followsLoad reports whether fewer pods, or shorter ones, do the same work on faster GPUs.
func followsLoad(pod *corev1.Pod) bool {
	return JobOf(pod) != nil || pod.Annotations[v1alpha1.FollowsLoadAnnotation] == "true"
}

func parseThroughput(text string) (Throughput, error) {
	if len(text) > maxThroughputText {
		return nil, fmt.Errorf("it is longer than %d characters", maxThroughputText)
	}
	t := Throughput{}
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		parts := throughputEntry.FindStringSubmatch(entry)
		if parts == nil {
			return nil, fmt.Errorf("%q is no throughput: write the name of a GPU and a number with at most three decimals, such as t4=1 or a10g=2.4", entry)
		}
		milli, err := strconv.ParseInt(parts[2]+(parts[3] + "000")[:3], 10, 64)
		if err != nil || milli == 0 {
			return nil, fmt.Errorf("%q: a throughput is greater than 0; leave out GPUs that are not to be used", entry)
		}
		if _, twice := t[parts[1]]; twice {
			return nil, fmt.Errorf("it names %s twice", parts[1])
		}
		t[parts[1]] = milli
	}
	if len(t) > maxThroughputs {
		return nil, fmt.Errorf("it names more than %d GPUs", maxThroughputs)
	}
	return t, nil
}

// throughputText returns the text of the throughput that counts for a pod, or "" if none does.
func throughputText(pod *corev1.Pod) string {
	if t, err := ThroughputOf(pod); t == nil || err != nil {
		return ""
	}
	return pod.Annotations[v1alpha1.ThroughputAnnotation]
}
