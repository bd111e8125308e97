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
)

const (
	// costLimit limits the evaluation of a selector, in CEL's cost units. Usual selectors cost less than a hundred. The scheduler allows a million, which
	// takes milliseconds for each expression and model: many such claims would slow down the plans of all pods.
	costLimit uint64 = 10_000
	// maxCompiled is the number of compiled expressions that are cached, each up to 200 KiB. They are those of one pod, which are evaluated for one kind
	// after the other. maxResults is the number of cached results, each up to 1 KiB and mostly a third.
	maxCompiled, maxResults = maxSelectors, 1 << 14
)

// whyNotSelected returns why the selectors of the claims do not select devices of a kind, or "" if they do.
func (a *Ask) whyNotSelected(kind Kind) string {
	if len(a.Selectors) > maxSelectors || slices.ContainsFunc(a.Selectors, func(expression string) bool { return len(expression) > selectorBytes }) {
		return "the claim has too many or too long selectors" // On does not let any pass.
	}
	for _, expression := range a.Selectors {
		if why := cachedEvaluations.whyNotSelecting(expression, kind); why != "" {
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

// cachedEvaluations is shared by all callers: a result depends only on the expression and the kind.
var cachedEvaluations = &evaluations{compiled: lru.New(maxCompiled), results: lru.New(maxResults)}

// evaluation identifies an expression by its hash, so that the cache does not keep the text.
type evaluation struct {
	expression [sha256.Size]byte
	kind       Kind
}

// whyNotSelecting returns why an expression does not select the devices of a kind, or "" if it does.
func (e *evaluations) whyNotSelecting(expression string, kind Kind) string {
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
		if why := whyTooCostly(expression); why != "" {
			return fmt.Sprintf("selector %s %s", shortExpression(expression), why)
		}
		limit := costLimit
		program = cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{CostLimit: &limit, DisableCostEstimation: true})
		e.compiled.Add(expression, program)
	}
	if program.Error != nil {
		return fmt.Sprintf("selector %s is not one that Karve can compile: %s", shortExpression(expression), shortText(program.Error.Detail))
	}
	certain, err := matches(program, knownDevice(kind))
	if err != nil {
		return fmt.Sprintf("selector %s cannot be evaluated for %ss of model %s before there is a node: %v", shortExpression(expression), kind.noun(), kind.model(), shortText(err.Error()))
	}
	// An expression may read attributes without naming them, for example by a macro.
	if later, err := matches(program, inventedDevice(kind)); err != nil || later != certain {
		return fmt.Sprintf("selector %s depends on what is known only when there is a node", shortExpression(expression))
	}
	if !certain {
		return fmt.Sprintf("selector %s does not select %ss of model %s", shortExpression(expression), kind.noun(), kind.model())
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
