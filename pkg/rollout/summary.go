package rollout

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/words"
)

// Summary describes a rollout for people. Programs can read it as JSON.
type Summary struct {
	Name      string `json:"name"`
	NodeClass string `json:"nodeClass"`
	// Wanted is spec.image, and Paused whether spec.promotion is Paused.
	Wanted string `json:"wanted"`
	Paused bool   `json:"paused"`
	// Current and Candidate are releases. They are "" if there is none.
	Current   string `json:"current,omitempty"`
	Candidate string `json:"candidate,omitempty"`
	// Step is "" if the controller has not seen the rollout. Since is when the step began, or nil if unknown.
	Step  v1alpha1.RolloutStep `json:"step,omitempty"`
	Since *time.Time           `json:"since,omitempty"`
	// Nodes is the number of nodes. Updated is the number of those with the current image.
	Nodes   int64 `json:"nodes"`
	Updated int64 `json:"updated"`
	// WaitsFor is the current activity or what it waits for. Problem is what a person has to fix. They are "" if there is nothing.
	WaitsFor string `json:"waitsFor,omitempty"`
	Problem  string `json:"problem,omitempty"`
	// Stages are the steps of the candidate, or of the current image while its nodes are replaced. There are none if nothing is being rolled out.
	Stages []Stage `json:"stages,omitempty"`
	// Distrusted are the images that failed, with what was observed.
	Distrusted []Distrusted `json:"distrusted,omitempty"`
}

// Stage is a step that an image goes through.
type Stage struct {
	Step v1alpha1.RolloutStep `json:"step"`
	// State is "done", "now" or "later".
	State string `json:"state"`
	// Words describe the step or its progress.
	Words string `json:"words"`
}

// Distrusted is an image that failed.
type Distrusted struct {
	Release string    `json:"release"`
	Since   time.Time `json:"since"`
	Message string    `json:"message"`
}

// Summarize describes a rollout. If the status is older than the spec, WaitsFor says so.
func Summarize(r *v1alpha1.GPUImageRollout) Summary {
	status := &r.Status
	s := Summary{
		Name: r.Name, NodeClass: r.Spec.NodeClassRef.Name, Wanted: r.Spec.Image, Paused: isPaused(r), Step: status.Step,
		Nodes: status.Nodes, Updated: status.NodesUpdated, WaitsFor: waitsFor(r), Problem: messageIf(r, v1alpha1.ConditionDegraded, metav1.ConditionTrue), Stages: stages(r),
	}
	if s.Problem == "" {
		s.Problem = messageIf(r, v1alpha1.ConditionAccepted, metav1.ConditionFalse)
	}
	if status.StepSince != nil {
		s.Since = &status.StepSince.Time
	}
	if status.Current != nil {
		s.Current = status.Current.Release
	}
	if status.Candidate != nil {
		s.Candidate = status.Candidate.Image.Release
	}
	for i := range status.Distrusted {
		s.Distrusted = append(s.Distrusted, Distrusted{status.Distrusted[i].Image.Release, status.Distrusted[i].Since.Time, status.Distrusted[i].Message})
	}
	return s
}

func waitsFor(r *v1alpha1.GPUImageRollout) string {
	switch {
	case r.Status.Step == "":
		return "the controller has not seen it yet; it needs imageRollouts.enabled=true in the chart"
	case r.Status.ObservedGeneration < r.Generation:
		return "the controller has not seen the last change yet"
	}
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
		return c.Message
	}
	return ""
}

func messageIf(r *v1alpha1.GPUImageRollout, condition string, status metav1.ConditionStatus) string {
	if c := meta.FindStatusCondition(r.Status.Conditions, condition); c != nil && c.Status == status {
		return c.Message
	}
	return ""
}

// stages returns the steps of the image that is being rolled out.
func stages(r *v1alpha1.GPUImageRollout) []Stage {
	s := &r.Status
	var release, canary string
	switch {
	case s.Candidate != nil:
		release = s.Candidate.Image.Release
	case s.Step == v1alpha1.StepRolling && s.Current != nil:
		release = s.Current.Release
	default:
		return nil
	}
	if s.Canary != nil && s.Canary.Node != "" {
		canary = " on canary node " + s.Canary.Node
	}
	all := []Stage{
		{v1alpha1.StepTesting, "", fmt.Sprintf("check a GPU with %s%s", release, canary)},
		{v1alpha1.StepSoaking, "", fmt.Sprintf("watch the canary node for %s", r.Spec.Soak)},
		{v1alpha1.StepWaiting, "", "wait for a window"},
		{v1alpha1.StepRolling, "", "replace the nodes as their NodePools' budgets allow"},
	}
	if s.Step == v1alpha1.StepRolling {
		all[3].Words = fmt.Sprintf("%d of %s replaced", s.NodesUpdated, words.Count(s.Nodes, "node"))
		if containsImage(s.Good, s.Current) {
			all = all[3:] // It ran before, so it was not tested again.
		}
	}
	state := "done"
	for i := range all {
		if all[i].Step == s.Step {
			all[i].State, state = "now", "later"
			continue
		}
		all[i].State = state
	}
	return all
}
