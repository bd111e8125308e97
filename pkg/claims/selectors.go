package claims

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
)

// capabilities has the CUDA compute capability of GPU models, by the cloud's name (https://developer.nvidia.com/cuda-gpus).
var capabilities = map[string][2]int{
	"m60": {5, 2}, "p100": {6, 0}, "p4": {6, 1}, "v100": {7, 0}, "t4": {7, 5}, "t4g": {7, 5}, "a100": {8, 0}, "a10": {8, 6}, "a10g": {8, 6}, "l4": {8, 9}, "l40s": {8, 9},
	"h100": {9, 0}, "h200": {9, 0}, "b200": {10, 0},
}

const (
	// costLimit bounds the evaluation of a selector, in CEL's cost units. Usual selectors cost less than a hundred. The scheduler allows a million, which takes
	// milliseconds for each expression and model: many such claims would slow down the plans of all pods.
	costLimit uint64 = 10_000
	// mostKept is the number of compiled expressions and of results that are kept.
	mostKept = 1 << 10
)

// onNode finds names in an expression of what only the node knows. Agents publish NVML's amount of memory, which the catalog does not have exactly.
var onNode = regexp.MustCompile(`\b(` + strings.Join([]string{
	nodecontract.DRAUUID, nodecontract.DRAProductName, nodecontract.DRAIndex, nodecontract.DRADriverVersion, nodecontract.DRACUDADriverVersion, "pcieRoot", "capacity",
}, "|") + `)\b`)

// unknowable returns why a selector cannot be evaluated before there is a node, and "" if its text names nothing that only a node knows.
func unknowable(expression string) string {
	switch name := onNode.FindString(expression); name {
	case "":
		return ""
	case "capacity":
		return fmt.Sprintf("reads the capacity of the GPU, which is known exactly only when there is a node: use capacity.requests.%s and capacity.requests.%s of the request", nodecontract.DRAMemory, nodecontract.DRAReplicas)
	default:
		return fmt.Sprintf("reads %s, which is known only when there is a node: use %s or %s, or node selectors of the pod", name, nodecontract.DRAArchitecture, nodecontract.DRAComputeCapability)
	}
}

// Fits returns why the GPUs of machines of a kind, with a number of replicas each, cannot be what the claims ask, and "" if they can.
func (a *Ask) Fits(gpu catalog.GPU, replicas int64) string {
	total := a.Total()
	switch {
	case a.Distinct() > gpu.Count:
		return fmt.Sprintf("the claim asks for %d GPUs of a machine, and machines with %s have %d", a.Distinct(), gpu.Name, gpu.Count)
	case a.Mixes != "" && gpu.Count > 1:
		return fmt.Sprintf("container %s refers to several claims or requests, which can be on different GPUs of a machine with %d: refer to one claim without naming a request, or allow machines with one GPU", a.Mixes, gpu.Count)
	case total.MemoryBytes > 0 && !gpu.UsableKnown():
		return fmt.Sprintf("Karve does not know how much device memory a GPU of model %s will publish", gpu.Name)
	case total.GPUs > 1 && a.over(replicas, gpu.UsableMiB()*bytesPerMiB): // The planner compares amounts of one GPU.
		return fmt.Sprintf("the claim asks for more of each GPU than a GPU of model %s has", gpu.Name)
	case gpu.Count > 1 && a.Large(replicas, gpu.UsableMiB()) && (total.GPUs == 1 || total.GPUs > gpu.Count):
		return fmt.Sprintf("the claim asks for more than half of a GPU, and on a machine with %d GPUs the scheduler may give every GPU to smaller pods first: allow machines with one GPU", gpu.Count)
	}
	for _, expression := range a.Selectors {
		if why := evaluated.of(expression, gpu.Name); why != "" {
			return why
		}
	}
	return ""
}

// evaluations keeps compiled expressions and their results. It is safe for concurrent use.
type evaluations struct {
	mu                sync.Mutex
	compiled, results *lru.Cache
}

// evaluated is shared by all: a result depends on nothing but the expression and the model.
var evaluated = &evaluations{compiled: lru.New(mostKept), results: lru.New(mostKept)}

type evaluation struct{ expression, model string }

// of returns why an expression does not select the GPUs of a model, and "" if it does.
func (e *evaluations) of(expression, model string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := evaluation{expression, model}
	if known, ok := e.results.Get(key); ok {
		if why, ok := known.(string); ok {
			return why
		}
	}
	why := e.evaluate(expression, model)
	e.results.Add(key, why)
	return why
}

func (e *evaluations) evaluate(expression, model string) string {
	program, ok := cel.CompilationResult{}, false
	if known, has := e.compiled.Get(expression); has {
		program, ok = known.(cel.CompilationResult)
	}
	if !ok {
		limit := costLimit
		program = cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{CostLimit: &limit, DisableCostEstimation: true})
		e.compiled.Add(expression, program)
	}
	if program.Error != nil {
		return fmt.Sprintf("selector %s is not one that Karve can compile: %s", short(expression), program.Error.Detail)
	}
	certain, err := matches(program, known(model))
	if err != nil {
		return fmt.Sprintf("selector %s cannot be evaluated for GPUs of model %s before there is a node: %v", short(expression), model, err)
	}
	// An expression may find attributes without naming them, such as by a macro.
	if later, err := matches(program, invented(model)); err != nil || later != certain {
		return fmt.Sprintf("selector %s depends on what is known only when there is a node", short(expression))
	}
	if !certain {
		return fmt.Sprintf("selector %s does not select GPUs of model %s", short(expression), model)
	}
	return ""
}

func matches(program cel.CompilationResult, device cel.Device) (bool, error) {
	ok, _, err := program.DeviceMatches(context.TODO(), device) // The cost is limited.
	return ok, err
}

// short returns an expression for messages.
func short(expression string) string {
	if len(expression) > 100 {
		expression = expression[:100] + "..."
	}
	return fmt.Sprintf("%q", expression)
}

// known returns a GPU of a model as agents publish it, with nothing but what is known before there is a node.
func known(model string) cel.Device {
	d := cel.Device{Driver: nodecontract.DRADriver, AllowMultipleAllocations: new(true), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}}
	if c, ok := capabilities[model]; ok {
		d.Attributes[nodecontract.DRAArchitecture] = resourcev1.DeviceAttribute{StringValue: new(nodecontract.Architecture(c[0], c[1]))}
		d.Attributes[nodecontract.DRAComputeCapability] = resourcev1.DeviceAttribute{VersionValue: new(nodecontract.ComputeCapability(c[0], c[1]))}
	}
	return d
}

// invented returns a GPU of a model with invented values for what only a node knows.
func invented(model string) cel.Device {
	d := known(model)
	maps.Copy(d.Attributes, map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
		nodecontract.DRAUUID: {StringValue: new("GPU-invented")}, nodecontract.DRAProductName: {StringValue: new("invented")}, nodecontract.DRAIndex: {IntValue: new(int64(0))},
		nodecontract.DRADriverVersion: {VersionValue: new("1.2.3")}, nodecontract.DRACUDADriverVersion: {VersionValue: new("1.2.3")}, nodecontract.DRAPCIeRoot: {StringValue: new("pci0000:00")},
	})
	d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
		nodecontract.DRAReplicas: {Value: *resource.NewQuantity(1, resource.DecimalSI)}, nodecontract.DRAMemory: {Value: *resource.NewQuantity(bytesPerMiB, resource.BinarySI)},
	}
	return d
}
