// Package configsource finds the configuration of the node, and watches it for changes.
//
// A configuration has up to three sources:
//
//   - The Node's annotations karve.sh/resource and karve.sh/replicas-per-gpu, which the controller set when it chose the machine. Their promise about
//     sharing always applies, because the plan counts on it, and a node that exposes anything else never becomes ready. They do not affect other settings.
//   - A directory of named configurations, from which the label nvidia.com/device-plugin.config selects one. As in NVIDIA's config manager, it takes
//     precedence over the file, because the label is for this node and the file is for all nodes.
//   - A single file.
//
// If two sources disagree, a message says which one applies and why.
package configsource

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// defaultName is the named configuration for nodes without the label, unless another one is configured.
const defaultName = "default"

// Document is the content of a file, or the error from reading it.
type Document struct {
	Data string
	Err  error
}

// Inputs holds everything that determines the configuration of the node.
type Inputs struct {
	// Path is the path of the single file, or "" if there is none. File is its content.
	Path string
	File Document
	// Dir is the directory of named configurations, or "" if there is none. Named is its content.
	Dir    string
	DirErr error
	Named  map[string]Document
	// Default is the named configuration for nodes without the label.
	Default string
	// Label is the Node's label. Resource and Replicas are its annotations.
	Label, Resource, Replicas, MPS, MIG, Slots, Backend string
	// MIGConfig is the Node's label nodecontract.MIGConfigLabel.
	MIGConfig string
	// Strict rejects unknown keys.
	Strict bool
}

// Answer is the configuration with its source and with messages for users.
type Answer struct {
	Config   sharing.Config
	Source   string
	Messages []string
}

// ErrEmpty is the error for an empty file. An empty file does not disable sharing, because a file is also empty while it is being written.
var ErrEmpty = errors.New("is empty; write \"version: v1\" to share nothing")

// ErrManagedElsewhere means that NVIDIA's MIG manager divides the GPUs.
var ErrManagedElsewhere = errors.New("remove the label and keep the MIG manager off this node, or use another strategy")

// Choose returns the configuration. If it returns an error, the answer holds the configuration from the promise alone, if there is one.
func Choose(in Inputs) (Answer, error) {
	a := Answer{Source: "nothing: no configuration is given"}
	document, err := a.document(in)
	if err == nil && document != nil {
		err = a.read(*document, in.Strict)
	}
	if err != nil {
		a = Answer{}
		if promiseErr := a.usePromise(in); promiseErr != nil {
			return Answer{}, errors.Join(err, promiseErr)
		}
		return a, err
	}
	if err := a.usePromise(in); err != nil {
		return Answer{}, err
	}
	return a, nil
}

// document returns the file or the named configuration that applies.
func (a *Answer) document(in Inputs) (*Document, error) {
	switch {
	case in.Dir == "" && in.Label != "":
		a.say("the label %s=%s has no effect: no folder of configurations is given (--config-dir)", nodecontract.ConfigLabel, in.Label)
	case in.Dir != "" && in.DirErr != nil:
		return nil, fmt.Errorf("reading the configurations in %s: %w", in.Dir, in.DirErr)
	case in.Dir != "":
		name, why, err := pickName(in)
		if err != nil {
			return nil, err
		}
		if name != "" {
			if in.Path != "" {
				a.say("the configuration %q of %s counts before the file %s: %s", name, in.Dir, in.Path, why)
			}
			document := in.Named[name]
			a.Source = fmt.Sprintf("the configuration %q of %s", name, in.Dir)
			return &document, nil
		}
	}
	if in.Path != "" {
		a.Source = "the file " + in.Path
		return &in.File, nil
	}
	return nil, nil //nolint:nilnil // That there is none is an answer.
}

// pickName returns the name of the named configuration for this node, or "" if there is none.
func pickName(in Inputs) (name, why string, err error) {
	names := slices.Sorted(maps.Keys(in.Named))
	known := func(name string) bool { return slices.Contains(names, name) }
	has := "there is " + strings.Join(names, ", ")
	if len(names) == 0 {
		has = "it is empty"
	}
	switch {
	case in.Label != "" && !known(in.Label):
		return "", "", fmt.Errorf("the label %s names %q, which is not in %s; %s", nodecontract.ConfigLabel, in.Label, in.Dir, has)
	case in.Label != "":
		return in.Label, "the node's label " + nodecontract.ConfigLabel + " names it, and the file is for all nodes", nil
	case in.Default != "" && !known(in.Default):
		return "", "", fmt.Errorf("the default configuration is %q, which is not in %s; %s", in.Default, in.Dir, has)
	case in.Default != "":
		return in.Default, "it is the default for nodes without the label " + nodecontract.ConfigLabel, nil
	case in.Path != "":
		return "", "", nil
	case known(defaultName):
		return defaultName, "", nil
	case len(names) == 1:
		return names[0], "", nil
	}
	return "", "", nil
}

func (a *Answer) read(d Document, strict bool) error {
	if d.Err != nil {
		return fmt.Errorf("reading %s: %w", a.Source, d.Err)
	}
	if strings.TrimSpace(d.Data) == "" {
		return fmt.Errorf("%s %w", a.Source, ErrEmpty)
	}
	config, warnings, err := sharing.Read([]byte(d.Data), strict)
	if err != nil {
		return fmt.Errorf("reading %s: %w", a.Source, err)
	}
	a.Config = config
	for _, w := range warnings {
		a.say("%s: %s", a.Source, w)
	}
	return nil
}

// usePromise replaces the configured sharing with the promised one.
func (a *Answer) usePromise(in Inputs) error {
	if in.Resource == "" && in.Replicas == "" && in.Slots == "" {
		if a.Source == "" {
			return errors.New("and nothing is promised in the Node's annotations")
		}
		return nil
	}
	promise, err := promiseOf(in)
	if err != nil {
		return err
	}
	promised, err := sharing.FromPromise(promise)
	if err != nil {
		return fmt.Errorf("the Node's annotations %s and %s: %w", nodecontract.ResourceAnnotation, nodecontract.ReplicasPerGPUAnnotation, err)
	}
	given, alike := a.Config.Promise()
	if alike && given.Equal(promise) && a.Source != "" {
		return nil
	}
	where := "the Node's annotations"
	if strings.HasPrefix(a.Source, "the ") {
		said := "something else"
		if alike {
			said = given.String()
		}
		a.say("%s says %s a GPU, and the Node's annotations promise %s: the promise counts, because the machine was chosen for it", a.Source, said, promise)
		where += ", and the flags of " + strings.TrimPrefix(a.Source, "the ")
	}
	a.Config.Sharing, a.Source = promised.Sharing, where
	return nil
}

// promiseOf returns what the Node's annotations promise.
func promiseOf(in Inputs) (sharing.Promise, error) {
	slots, err := nodecontract.ParseSlots(in.Slots)
	if err != nil {
		return sharing.Promise{}, fmt.Errorf("the Node's annotations: %w", err)
	}
	if !slots.IsZero() {
		return sharing.Promise{Slots: slots, Backend: in.Backend}, nil
	}
	replicas, err := strconv.Atoi(in.Replicas)
	if err != nil {
		return sharing.Promise{}, fmt.Errorf("the Node's annotation %s is %q, and must be a number", nodecontract.ReplicasPerGPUAnnotation, in.Replicas)
	}
	mps, err := nodecontract.ParseMPS(in.MPS)
	if err != nil {
		return sharing.Promise{}, fmt.Errorf("the Node's annotations: %w", err)
	}
	mig, err := nodecontract.ParseMIG(in.MIG)
	if err != nil {
		return sharing.Promise{}, fmt.Errorf("the Node's annotations: %w", err)
	}
	if !mig.IsZero() && in.MIGConfig != "" {
		return sharing.Promise{}, fmt.Errorf("%s on each GPU were promised, and the Node's label %s=%s tells NVIDIA's MIG manager how to divide the GPUs: %w",
			mig.Describe(), nodecontract.MIGConfigLabel, in.MIGConfig, ErrManagedElsewhere)
	}
	if replicas == 1 {
		mps = nodecontract.MPS{} // A GPU with an override of one replica is not shared.
	}
	return sharing.Promise{Resource: in.Resource, Replicas: replicas, MPS: mps, MIG: mig, Backend: in.Backend}, nil
}

func (a *Answer) say(format string, args ...any) {
	a.Messages = append(a.Messages, fmt.Sprintf(format, args...))
}
