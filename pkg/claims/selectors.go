package claims

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/words"
)

const (
	// costLimit limits the evaluation of a selector, in CEL's cost units. Usual selectors cost less than a hundred. The scheduler allows a million, which
	// takes milliseconds for each expression and model: many such claims would slow down the plans of all pods.
	costLimit uint64 = 10_000
	// maxCompiled is the number of compiled expressions that are cached, each up to 200 KiB. They are those of one pod, which are evaluated for one kind
	// after the other. maxResults is the number of cached results, each up to 1 KiB and mostly a third.
	maxCompiled, maxResults = maxSelectors, 1 << 14
)

// Devices are the GPUs of a machine, or their MIG instances, which are all alike.
type Devices struct {
	Kind
	// Count is their number. Replicas and MemoryMiB are those of each device; MemoryMiB is 0 if unknown.
	Count, Replicas, MemoryMiB int64
}

// Kind is what is known about a device before there is a node.
type Kind struct {
	// Driver is the DRA driver, or "" for that of Karve's agents.
	Driver string
	// Whole reports whether a device serves one claim at a time and has no replicas capacity, as NVIDIA's driver publishes GPUs that are not shared.
	Whole bool
	// Model is the cloud's name of the GPU. Profile is that of the MIG instance, or "" for a whole GPU.
	Model, Profile string
	// Resource is the extended resource that serves the device.
	Resource string
}

// what describes a device for messages.
func (k Kind) what() string {
	if k.Profile != "" {
		return "MIG instance"
	}
	return "GPU"
}

// model returns the model with the profile, for messages.
func (k Kind) model() string {
	if k.Profile != "" {
		return k.Model + " (" + k.Profile + ")"
	}
	return k.Model
}

// Fits returns why the devices of machines of a kind cannot satisfy the claims, or "" if they can.
func (a *Ask) Fits(d Devices) string {
	if why := a.otherKind(d); why != "" {
		return why
	}
	if why := a.tooMuch(d); why != "" {
		return why
	}
	return a.notSelected(d.Kind)
}

// otherKind returns why the claims are not for devices of a kind, whatever their number and size, or "" if they may be.
func (a *Ask) otherKind(d Devices) string {
	driver := driverNamed(d.Driver)
	switch {
	case a.DriverName() != driver.name:
		return fmt.Sprintf("the claim is for GPUs of the driver %s, and those of machines with %s are of the driver %s", a.DriverName(), d.model(), driver.name)
	case a.NamesReplicas && d.Whole:
		return fmt.Sprintf("the claim requests the capacity %s, which GPUs do not have that are not shared: remove it, or use a NodePool with strategy TimeSlicing", driver.replicas)
	case a.MPS && !d.Whole:
		return "the claim has a config with MPS, which the driver refuses for GPUs with shares: remove it, or use a NodePool with strategy None"
	case a.Distinct() > d.Count:
		return fmt.Sprintf("the claim asks for %s of a machine, and machines with %s have %d", words.Count(a.Distinct(), d.what()), d.model(), d.Count)
	case a.ByIndex && d.Profile != "":
		return fmt.Sprintf("the claim has a constraint with %s/%s, and MIG instances have the index of their GPU: use %s/%s", nodecontract.DRADriver, nodecontract.DRAIndex, nodecontract.DRADriver, nodecontract.DRAUUID)
	case a.Mixes != "" && d.Count > 1:
		return fmt.Sprintf("container %s refers to several claims or requests, which can be on different %ss of a machine with %d: refer to one claim without naming a request, or allow machines with one %s",
			a.Mixes, d.what(), d.Count, d.what())
	}
	return ""
}

// tooMuch returns why the claims ask for more than devices have, or may have when the scheduler places them, or "" if they do not.
func (a *Ask) tooMuch(d Devices) string {
	switch total := a.Total(); {
	case total.MemoryBytes > 0 && d.MemoryMiB == 0:
		return fmt.Sprintf("Karve does not know how much device memory a %s of model %s will publish", d.what(), d.model())
	case (total.GPUs > 1 || d.Count > 1) && a.over(d.Replicas, d.MemoryMiB*bytesPerMiB): // The planner adds up what a machine has, and compares the memory of one GPU.
		return fmt.Sprintf("the claim asks for more of each %s than a %s of model %s has", d.what(), d.what(), d.model())
	case d.Count > 1 && a.Large(d.Replicas, d.MemoryMiB) && (total.GPUs == 1 || total.GPUs > d.Count):
		return fmt.Sprintf("the claim asks for more than half of a %s, and on a machine with %s the scheduler may give every %s to smaller pods first: allow machines with one %s",
			d.what(), words.Count(d.Count, d.what()), d.what(), d.what())
	}
	return ""
}

// notSelected returns why the selectors of the claims do not select devices of a kind, or "" if they do.
func (a *Ask) notSelected(kind Kind) string {
	if len(a.Selectors) > maxSelectors || slices.ContainsFunc(a.Selectors, func(expression string) bool { return len(expression) > selectorBytes }) {
		return "the claim has too many or too long selectors" // On does not let any pass.
	}
	for _, expression := range a.Selectors {
		if why := evaluated.of(expression, kind); why != "" {
			return why
		}
	}
	return ""
}

// evaluations caches compiled expressions and their results. It is safe for concurrent use.
type evaluations struct {
	mu                sync.Mutex
	compiled, results *lru.Cache
}

// evaluated is shared by all callers: a result depends only on the expression and the kind.
var evaluated = &evaluations{compiled: lru.New(maxCompiled), results: lru.New(maxResults)}

// evaluation identifies an expression by its hash, so that the cache does not keep the text.
type evaluation struct {
	expression [sha256.Size]byte
	kind       Kind
}

// of returns why an expression does not select the devices of a kind, or "" if it does.
func (e *evaluations) of(expression string, kind Kind) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := evaluation{sha256.Sum256([]byte(expression)), kind}
	if known, ok := e.results.Get(key); ok {
		if why, ok := known.(string); ok {
			return why
		}
	}
	why := e.evaluate(expression, kind)
	e.results.Add(key, why)
	return why
}

func (e *evaluations) evaluate(expression string, kind Kind) string {
	program, ok := cel.CompilationResult{}, false
	if known, has := e.compiled.Get(expression); has {
		program, ok = known.(cel.CompilationResult)
	}
	if !ok {
		if why := whyCostly(expression); why != "" {
			return fmt.Sprintf("selector %s %s", shortExpression(expression), why)
		}
		limit := costLimit
		program = cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{CostLimit: &limit, DisableCostEstimation: true})
		e.compiled.Add(expression, program)
	}
	if program.Error != nil {
		return fmt.Sprintf("selector %s is not one that Karve can compile: %s", shortExpression(expression), clip(program.Error.Detail))
	}
	certain, err := matches(program, knownDevice(kind))
	if err != nil {
		return fmt.Sprintf("selector %s cannot be evaluated for %ss of model %s before there is a node: %v", shortExpression(expression), kind.what(), kind.model(), clip(err.Error()))
	}
	// An expression may read attributes without naming them, for example by a macro.
	if later, err := matches(program, inventedDevice(kind)); err != nil || later != certain {
		return fmt.Sprintf("selector %s depends on what is known only when there is a node", shortExpression(expression))
	}
	if !certain {
		return fmt.Sprintf("selector %s does not select %ss of model %s", shortExpression(expression), kind.what(), kind.model())
	}
	return ""
}

func matches(program cel.CompilationResult, device cel.Device) (bool, error) {
	ok, _, err := program.DeviceMatches(context.TODO(), device) //nolint:forbidigo // The cost is limited.
	return ok, err
}

// shortExpression shortens an expression for messages.
func shortExpression(expression string) string {
	if len(expression) > 100 {
		expression = expression[:100] + "..."
	}
	return fmt.Sprintf("%q", expression)
}

// knownDevice returns a device of a kind as its driver publishes it, with only the attributes that are known before there is a node.
func knownDevice(kind Kind) cel.Device {
	driver := driverNamed(kind.Driver)
	return cel.Device{Driver: driver.name, AllowMultipleAllocations: new(!kind.Whole), Attributes: driver.known(kind)}
}

// inventedDevice returns a device of a kind with made-up values for the attributes that only a node knows.
func inventedDevice(kind Kind) cel.Device {
	d, driver := knownDevice(kind), driverNamed(kind.Driver)
	maps.Copy(d.Attributes, driver.onNode)
	if kind.Profile == "" {
		delete(d.Attributes, nodecontract.DRAParentUUID)
	}
	d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{driver.memory: {Value: *resource.NewQuantity(bytesPerMiB, resource.BinarySI)}}
	if !kind.Whole {
		d.Capacity[driver.replicas] = resourcev1.DeviceCapacity{Value: *resource.NewQuantity(1, resource.DecimalSI)}
	}
	return d
}
