// Package prices turns the prices of a cloud's price list into those that a company pays, by rules for discounts, savings plans and fees, and by Karpenter's NodeOverlays.
package prices

import (
	"cmp"
	"encoding/json"
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

// MaxLimits is the maximum number of rules with a limit. Each of them adds an offering for each machine that it is about.
const MaxLimits = 10

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
	// UpTo limits how much runs at the price. Machines beyond it have the price without the rule.
	UpTo *UpTo `json:"upTo,omitempty"`
}

// UpTo is a limit of a rule. Exactly one of its fields is set.
type UpTo struct {
	Machines *int64 `json:"machines,omitempty"`
	// USDPerHour is what the machines cost together after the rule, in US dollars per hour, for example "12.50".
	USDPerHour string `json:"usdPerHour,omitempty"`
}

// MaxUpTo is the highest limit of a rule, in machines and in US dollars per hour.
const MaxUpTo = 1_000_000_000

// amount returns the limit in machines or in micro-dollars per hour.
func (u *UpTo) amount() (int64, error) {
	switch {
	case (u.Machines == nil) == (u.USDPerHour == ""):
		return 0, errors.New("upTo must have either machines or usdPerHour")
	case u.Machines != nil:
		if *u.Machines < 1 || *u.Machines > MaxUpTo {
			return 0, fmt.Errorf("upTo has %d machines, and must have 1 to %d", *u.Machines, MaxUpTo)
		}
		return *u.Machines, nil
	}
	usd, err := strconv.ParseFloat(u.USDPerHour, 64)
	if !pricePattern.MatchString(u.USDPerHour) || err != nil || usd < 1e-6 || usd > MaxUpTo {
		return 0, fmt.Errorf("usdPerHour %q of upTo must be a positive number of US dollars per hour up to %d, such as 12.50", u.USDPerHour, MaxUpTo)
	}
	return int64(math.Round(usd * 1e6)), nil
}

// Parse reads a list of rules in YAML or JSON, or the prices of a file with values of the chart. Unknown fields of rules are errors. It returns all errors, joined.
func Parse(text []byte) ([]Rule, error) {
	var values struct {
		Prices json.RawMessage `json:"prices"`
	}
	if yaml.Unmarshal(text, &values) == nil && values.Prices != nil { // A list is not such a file.
		text = values.Prices
	}
	var rules []Rule
	if err := yaml.UnmarshalStrict(text, &rules); err != nil {
		return nil, fmt.Errorf("reading the prices: %w", err)
	}
	return rules, validate(rules)
}

func validate(rules []Rule) error {
	if len(rules) > MaxRules {
		return fmt.Errorf("there are %d rules for prices, and at most %d are allowed", len(rules), MaxRules)
	}
	var errs []error
	seen, limits := map[string]bool{}, 0
	for i := range rules {
		r := &rules[i]
		if r.UpTo != nil {
			limits++
		}
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
	if limits > MaxLimits {
		errs = append(errs, fmt.Errorf("%d rules for prices have upTo, and at most %d may have it", limits, MaxLimits))
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
	// limit is nil if the change is for all machines.
	limit *limit
}

// limit is the limit of a change: a number of machines, or what they cost together.
type limit struct {
	catalog.PriceLimit
	dollars bool
}

func (r *Rule) compile() (change, error) {
	if (r.Price == "") == (r.PriceAdjustment == "") {
		return change{}, errors.New("it must have either price or priceAdjustment")
	}
	if err := valid(r.Requirements); err != nil {
		return change{}, err
	}
	c, err := compile(r.Requirements, r.Price, r.PriceAdjustment)
	if err == nil && r.UpTo != nil {
		var amount int64
		amount, err = r.UpTo.amount()
		c.limit = &limit{catalog.PriceLimit{Name: r.Name, Amount: amount}, r.UpTo.Machines == nil}
	}
	return c, err
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
		c.plus = number(price)
	case !adjustmentPattern.MatchString(adjustment):
		return c, fmt.Errorf(`priceAdjustment %q must be a percentage with a sign, such as -28%%, or US dollars per hour with a sign, such as +0.10`, adjustment)
	default:
		text, percent := strings.CutSuffix(adjustment, "%")
		value := number(text)
		c.factor = 1
		if percent {
			c.factor += value / 100
		} else {
			c.plus = value
		}
	}
	return c, nil
}

// beyond is more than any price, in US dollars, and more than any percentage.
const beyond = 1e12

// number returns the value of a text that a pattern accepts. It saturates: no sum of rules is infinite, and none is not a number.
func number(text string) float64 {
	value, _ := strconv.ParseFloat(text, 64)
	return min(max(value, -beyond), beyond)
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
	// overlays are ordered: the first that is about an offering applies. All of the rules that are about it apply, in their order. Of those with a limit, at most one
	// does.
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
	limits := map[string]bool{}
	for i := range rules {
		c, err := rules[i].compile()
		if err == nil && c.limit != nil && (limits[c.limit.Name] || len(limits) == MaxLimits) {
			err = errors.New("the limit repeats, or there are too many")
		}
		switch {
		case err != nil:
			c = never
		case c.limit != nil:
			limits[c.limit.Name] = true
		}
		b.rules = append(b.rules, c)
	}
	return b
}

// never is about no offering.
var never = change{requirements: []*scheduling.Requirement{scheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn)}}

// Price returns what a machine with the labels costs, in micro-dollars per hour, given its list price. It is at least 1 and at most [planner.MaxPrice].
func (b *Book) Price(labels map[string]string, list int64) int64 {
	price, _, _ := b.apply(labels, list, unlimited)
	return price
}

// unlimited is the index of no rule.
const unlimited = -1

// limited returns the lower prices that a machine with the labels has up to a limit, given its price beyond the limits and its list price.
func (b *Book) limited(labels map[string]string, price, list int64) []catalog.LimitedPrice {
	var all []catalog.LimitedPrice
	for i := range b.rules {
		c := &b.rules[i]
		if c.limit == nil || !c.meets(labels) {
			continue
		}
		if lower, draws, _ := b.apply(labels, list, i); lower < price {
			if !c.limit.dollars {
				draws = 1
			}
			all = append(all, catalog.LimitedPrice{MicroUSDPerHour: lower, Limit: c.limit.Name, Draws: draws})
		}
	}
	return all
}

// Limits returns the limits of the rules.
func (b *Book) Limits() []catalog.PriceLimit {
	if b.Empty() {
		return nil
	}
	var all []catalog.PriceLimit
	for i := range b.rules {
		if l := b.rules[i].limit; l != nil {
			all = append(all, l.PriceLimit)
		}
	}
	return all
}

// apply returns the price of a machine, with the given one of the rules that have a limit. It also returns the price after that rule, and the indices of the rules that
// changed the price, without those before a rule that sets it.
func (b *Book) apply(labels map[string]string, list int64, with int) (price, after int64, by []int) {
	if b.Empty() {
		return list, list, nil
	}
	final := func(price float64) int64 {
		return max(int64(math.Round(min(price, float64(planner.MaxPrice)))), catalog.Free(list))
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
		if c.limit != nil && i != with || !c.meets(labels) {
			continue
		}
		if c.factor == 0 {
			by = nil // What was before has no effect.
		}
		now, by = c.of(now), append(by, i)
		if i == with {
			after = final(now)
		}
	}
	return final(now), after, by
}

// of returns the changed price, which is not negative.
func (c *change) of(price float64) float64 { return min(max(0, price*c.factor+c.plus*1e6), beyond*1e6) }

// Types returns instance types with the prices that the company pays, and those of the list beside them. The machines have labels in addition to those of their
// offerings. No rule applies to the slots of reservations. It returns the same types if no price changes.
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
			if o.Reservation != "" {
				continue // It is paid anyway.
			}
			list := o.ListPrice()
			all := labelsOf(labels, t, o)
			o.MicroUSDPerHour, o.ListMicroUSDPerHour = b.Price(all, list), list
			o.Limited = b.limited(all, o.MicroUSDPerHour, list)
		}
	}
	return priced
}

// typical is a price of a dollar per hour, for which rules are tried.
const typical = 1_000_000

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

// Unused returns the indices of the rules that have no effect on the price of any offering of the instance types, by the labels that their machines have in addition. A
// rule with a limit has one only if it lowers the price.
func (b *Book) Unused(types iter.Seq2[map[string]string, []catalog.InstanceType]) []int {
	if b.Empty() {
		return nil
	}
	used := make([]bool, len(b.rules))
	for labels, all := range types {
		for i := range all {
			for j := range all[i].Offerings {
				if all[i].Offerings[j].Reservation != "" {
					continue
				}
				labels := labelsOf(labels, &all[i], &all[i].Offerings[j])
				price, _, by := b.apply(labels, typical, unlimited)
				for _, r := range by {
					used[r] = true
				}
				for _, p := range b.limited(labels, price, typical) {
					used[slices.IndexFunc(b.rules, func(c change) bool { return c.limit != nil && c.limit.Name == p.Limit })] = true
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
