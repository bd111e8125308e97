// Package prices turns the prices of a cloud's price list into those that a company pays, by rules for discounts, savings plans and fees, and by Karpenter's NodeOverlays.
package prices

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/words"
)

// MaxRules is the maximum number of rules. They are part of the ConfigMap that the controller publishes.
const MaxRules = 1000

// Rule changes the price of offerings. Its fields have the meaning of those of a NodeOverlay.
type Rule struct {
	// Name is unique among the rules. Reports name the rule by it.
	Name string `json:"name"`
	// Requirements select the offerings by the labels of their machines. Without requirements, the rule is about all offerings.
	Requirements []karpv1alpha1.NodeSelectorRequirement `json:"requirements,omitempty"`
	// Price is the new price in US dollars per hour, for example "0.35".
	Price string `json:"price,omitempty"`
	// PriceAdjustment changes the price by a percentage, for example "-28%", or by US dollars per hour, for example "+0.10".
	PriceAdjustment string `json:"priceAdjustment,omitempty"`
}

// Parse reads a list of rules in YAML or JSON. Unknown fields are errors. It returns all errors, joined.
func Parse(text []byte) ([]Rule, error) {
	var rules []Rule
	if err := yaml.UnmarshalStrict(text, &rules); err != nil {
		return nil, fmt.Errorf("reading the prices: %w", err)
	}
	return rules, validate(rules)
}

// validate returns all errors of rules, joined.
func validate(rules []Rule) error {
	if len(rules) > MaxRules {
		return fmt.Errorf("there are %d rules for prices, and at most %d are allowed", len(rules), MaxRules)
	}
	var errs []error
	seen := map[string]bool{}
	for i := range rules {
		r := &rules[i]
		if r.Name == "" {
			errs = append(errs, fmt.Errorf("rule %d for prices has no name", i))
			continue
		}
		if seen[r.Name] {
			errs = append(errs, fmt.Errorf("two rules for prices have the name %q", r.Name))
		}
		seen[r.Name] = true
		if _, err := r.compile(); err != nil {
			errs = append(errs, fmt.Errorf("rule %q for prices: %w", r.Name, err))
		}
	}
	return errors.Join(errs...)
}

// The patterns of a NodeOverlay's CustomResourceDefinition, except that a reduction may exceed 100 %. The price is then 0.
var (
	pricePattern      = regexp.MustCompile(`^\d+(\.\d+)?$`)
	adjustmentPattern = regexp.MustCompile(`^[+-](\d*\.)?\d+%?$`)
)

// change is a new price or an adjustment: price*factor + plus.
type change struct {
	requirements []*scheduling.Requirement
	factor, plus float64
}

func (r *Rule) compile() (change, error) {
	if (r.Price == "") == (r.PriceAdjustment == "") {
		return change{}, errors.New("it must have either price or priceAdjustment")
	}
	if err := valid(r.Requirements); err != nil {
		return change{}, err
	}
	return compile(r.Requirements, r.Price, r.PriceAdjustment)
}

func compile(requirements []karpv1alpha1.NodeSelectorRequirement, price, adjustment string) (change, error) {
	plain := make([]corev1.NodeSelectorRequirement, 0, len(requirements))
	for _, r := range requirements {
		plain = append(plain, r.AsNodeSelectorRequirement())
	}
	c := change{requirements: scheduling.NewNodeSelectorRequirements(plain...).Values()}
	switch {
	case price != "":
		if !pricePattern.MatchString(price) {
			return c, fmt.Errorf("price %q must be a number of US dollars per hour, such as 0.35", price)
		}
		c.plus, _ = strconv.ParseFloat(price, 64)
	case !adjustmentPattern.MatchString(adjustment):
		return c, fmt.Errorf(`priceAdjustment %q must be a percentage with a sign, such as -28%%, or US dollars per hour with a sign, such as +0.10`, adjustment)
	default:
		number, percent := strings.CutSuffix(adjustment, "%")
		value, _ := strconv.ParseFloat(number, 64)
		c.factor = 1
		if percent {
			c.factor += value / 100
		} else {
			c.plus = value
		}
	}
	return c, nil
}

// valid returns what is wrong with requirements, as the rules of a NodeOverlay's CustomResourceDefinition do.
func valid(requirements []karpv1alpha1.NodeSelectorRequirement) error {
	for _, r := range requirements {
		if r.Key == "" {
			return errors.New("a requirement has no key")
		}
		values := words.Named(r.Values, 3)
		switch op := string(r.Operator); op {
		case "In", "NotIn":
			if len(r.Values) == 0 {
				return fmt.Errorf("operator %s of requirement %q needs values", op, r.Key)
			}
		case "Exists", "DoesNotExist":
			if len(r.Values) > 0 {
				return fmt.Errorf("operator %s of requirement %q must have no values, but has %s", op, r.Key, values)
			}
		case "Gt", "Lt", "Gte", "Lte":
			if len(r.Values) != 1 {
				return fmt.Errorf("operator %s of requirement %q needs one integer, but has %s", op, r.Key, values)
			}
			if n, err := strconv.Atoi(r.Values[0]); err != nil || n < 0 {
				return fmt.Errorf("operator %s of requirement %q needs an integer that is not negative, but has %s", op, r.Key, values)
			}
		default:
			return fmt.Errorf("requirement %q has the unknown operator %q", r.Key, op)
		}
	}
	return nil
}

func (c *change) meets(labels map[string]string) bool {
	for _, r := range c.requirements {
		value, ok := labels[r.Key]
		if !ok && r.Operator() != corev1.NodeSelectorOpNotIn && r.Operator() != corev1.NodeSelectorOpDoesNotExist || ok && !r.Has(value) {
			return false
		}
	}
	return true
}

// Book knows what a company pays. The zero value, and nil, know only the price list.
type Book struct {
	// overlays are ordered: the first that is about an offering applies. All of the rules that are about it apply, in their order.
	overlays, rules []change
}

// NewBook returns the prices with NodeOverlays, of which Karpenter applies one to an offering, and then with rules. Overlays that change no price and invalid rules are
// left out: [Parse] and Karpenter report them.
func NewBook(overlays []karpv1alpha1.NodeOverlay, rules []Rule) *Book {
	b := &Book{}
	ordered := slices.Clone(overlays)
	slices.SortStableFunc(ordered, func(x, y karpv1alpha1.NodeOverlay) int {
		return cmp.Or(cmp.Compare(ptr.Deref(y.Spec.Weight, 0), ptr.Deref(x.Spec.Weight, 0)), strings.Compare(y.Name, x.Name))
	})
	for i := range ordered {
		o := &ordered[i].Spec
		if o.Price == nil && o.PriceAdjustment == nil {
			continue
		}
		if c, err := compile(o.Requirements, ptr.Deref(o.Price, ""), ptr.Deref(o.PriceAdjustment, "")); err == nil {
			b.overlays = append(b.overlays, c)
		}
	}
	for i := range rules {
		c, err := rules[i].compile()
		if err != nil {
			c = never
		}
		b.rules = append(b.rules, c)
	}
	return b
}

// never is about no offering.
var never = change{requirements: []*scheduling.Requirement{scheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn)}}

// free divides the price of what costs nothing more, so that a plan prefers the machine that would cost less otherwise. Karpenter divides the prices of reservations by
// the same number.
const free = 10_000_000

// Price returns what a machine with the labels costs, in micro-dollars per hour, given its list price. It is at least 1 and at most [planner.MaxPrice].
func (b *Book) Price(labels map[string]string, list int64) int64 {
	price, _ := b.apply(labels, list)
	return price
}

// apply also returns the indices of the rules that changed the price, without those before a rule that sets it.
func (b *Book) apply(labels map[string]string, list int64) (price int64, by []int) {
	if b.Empty() {
		return list, nil
	}
	now := float64(list)
	for i := range b.overlays {
		if c := &b.overlays[i]; c.meets(labels) {
			now = c.of(now)
			break
		}
	}
	for i := range b.rules {
		c := &b.rules[i]
		if !c.meets(labels) {
			continue
		}
		if c.factor == 0 {
			by = nil // What was before has no effect.
		}
		now, by = c.of(now), append(by, i)
	}
	price = int64(math.Round(min(now, float64(planner.MaxPrice))))
	return max(price, list/free, 1), by
}

// of returns the changed price, which is not negative.
func (c *change) of(price float64) float64 { return max(0, price*c.factor+c.plus*1e6) }

// Types returns instance types with the prices that the company pays, and those of the list beside them. Its machines have labels in addition to those of their offerings.
// It returns the same types if no price changes.
func (b *Book) Types(labels map[string]string, types []catalog.InstanceType) []catalog.InstanceType {
	if b.Empty() {
		return types
	}
	priced := slices.Clone(types)
	for i := range priced {
		t := &priced[i]
		t.Offerings = slices.Clone(t.Offerings)
		for j := range t.Offerings {
			o := &t.Offerings[j]
			list := o.ListPrice()
			o.MicroUSDPerHour, o.ListMicroUSDPerHour = b.Price(labelsOf(labels, t, o), list), list
		}
	}
	return priced
}

// labelsOf returns the labels by which rules select an offering.
func labelsOf(labels map[string]string, t *catalog.InstanceType, o *catalog.Offering) map[string]string {
	all := map[string]string{}
	maps.Copy(all, labels)
	maps.Copy(all, t.Labels)
	maps.Copy(all, o.Labels)
	return all
}

// Empty reports whether all prices are those of the list.
func (b *Book) Empty() bool { return b == nil || len(b.overlays)+len(b.rules) == 0 }

// Unused returns the indices of the rules that have no effect on the price of any offering of the instance types, by the labels that their machines have in addition.
func (b *Book) Unused(types iter.Seq2[map[string]string, []catalog.InstanceType]) []int {
	if b.Empty() {
		return nil
	}
	used := make([]bool, len(b.rules))
	for labels, all := range types {
		for i := range all {
			for j := range all[i].Offerings {
				_, by := b.apply(labelsOf(labels, &all[i], &all[i].Offerings[j]), 1)
				for _, r := range by {
					used[r] = true
				}
			}
		}
	}
	var unused []int
	for i, u := range used {
		if !u {
			unused = append(unused, i)
		}
	}
	return unused
}
