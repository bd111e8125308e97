package prices

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
)

const dollar = 1_000_000

var (
	onDemand = map[string]string{"karpenter.sh/capacity-type": "on-demand", "karpenter.k8s.aws/instance-family": "g4dn", "node.kubernetes.io/instance-type": "g4dn.xlarge", "karpenter.k8s.aws/instance-cpu": "4"}
	spot     = map[string]string{"karpenter.sh/capacity-type": "spot", "karpenter.k8s.aws/instance-family": "g4dn", "node.kubernetes.io/instance-type": "g4dn.xlarge", "karpenter.k8s.aws/instance-cpu": "4"}
)

func in(key string, values ...string) karpv1alpha1.NodeSelectorRequirement {
	return karpv1alpha1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

func overlay(name string, weight int32, price, adjustment string, requirements ...karpv1alpha1.NodeSelectorRequirement) karpv1alpha1.NodeOverlay {
	o := karpv1alpha1.NodeOverlay{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1alpha1.NodeOverlaySpec{Requirements: requirements}}
	if weight > 0 {
		o.Spec.Weight = &weight
	}
	if price != "" {
		o.Spec.Price = &price
	}
	if adjustment != "" {
		o.Spec.PriceAdjustment = &adjustment
	}
	return o
}

func TestRulesApplyInOrder(t *testing.T) {
	t.Parallel()
	plan := Rule{Name: "savings plan", Requirements: []karpv1alpha1.NodeSelectorRequirement{in("karpenter.sh/capacity-type", "on-demand")}, PriceAdjustment: "-28%"}
	fee := Rule{Name: "fee", PriceAdjustment: "+0.05"}
	fixed := Rule{Name: "contract", Requirements: []karpv1alpha1.NodeSelectorRequirement{in("karpenter.k8s.aws/instance-family", "g4dn")}, Price: "0.40"}
	large := Rule{Name: "large", Requirements: []karpv1alpha1.NodeSelectorRequirement{{Key: "karpenter.k8s.aws/instance-cpu", Operator: corev1.NodeSelectorOpGt, Values: []string{"4"}}}, PriceAdjustment: "-50%"}
	for name, tc := range map[string]struct {
		overlays []karpv1alpha1.NodeOverlay
		rules    []Rule
		labels   map[string]string
		want     int64
		unused   []int
	}{
		"no rules":                         {labels: onDemand, want: dollar},
		"a discount":                       {rules: []Rule{plan}, labels: onDemand, want: 720_000},
		"a discount for other machines":    {rules: []Rule{plan}, labels: spot, want: dollar, unused: []int{0}},
		"a fee after a discount":           {rules: []Rule{plan, fee}, labels: onDemand, want: 770_000},
		"a discount after a fee":           {rules: []Rule{fee, plan}, labels: onDemand, want: 756_000},
		"a price hides what was before":    {rules: []Rule{plan, fixed}, labels: onDemand, want: 400_000, unused: []int{0}},
		"a discount on a price":            {rules: []Rule{fixed, plan}, labels: onDemand, want: 288_000},
		"no machine is that large":         {rules: []Rule{large}, labels: onDemand, want: dollar, unused: []int{0}},
		"what costs nothing":               {rules: []Rule{{Name: "free", PriceAdjustment: "-100%"}}, labels: onDemand, want: 10},
		"a price of 0":                     {rules: []Rule{{Name: "free", Price: "0"}}, labels: onDemand, want: 10},
		"more off than there is":           {rules: []Rule{{Name: "free", PriceAdjustment: "-7"}}, labels: onDemand, want: 10},
		"a price that cannot be meant":     {rules: []Rule{{Name: "high", Price: "1000000000"}}, labels: onDemand, want: planner.MaxPrice},
		"an invalid rule":                  {rules: []Rule{{Name: "x", Price: "x"}, plan}, labels: onDemand, want: 720_000, unused: []int{0}},
		"the overlay with most weight":     {overlays: []karpv1alpha1.NodeOverlay{overlay("a", 1, "0.9", ""), overlay("b", 2, "0.8", "")}, labels: onDemand, want: 800_000},
		"only one overlay":                 {overlays: []karpv1alpha1.NodeOverlay{overlay("a", 1, "", "-50%"), overlay("b", 2, "", "-10%")}, labels: onDemand, want: 900_000},
		"an overlay for other machines":    {overlays: []karpv1alpha1.NodeOverlay{overlay("a", 1, "", "-50%"), overlay("b", 2, "", "-10%", in("karpenter.sh/capacity-type", "spot"))}, labels: onDemand, want: 500_000},
		"an overlay of capacity":           {overlays: []karpv1alpha1.NodeOverlay{overlay("a", 9, "", ""), overlay("b", 2, "", "-10%")}, labels: onDemand, want: 900_000},
		"rules come after overlays":        {overlays: []karpv1alpha1.NodeOverlay{overlay("a", 1, "0.5", "")}, rules: []Rule{plan}, labels: onDemand, want: 360_000},
		"overlays of the same weight":      {overlays: []karpv1alpha1.NodeOverlay{overlay("a", 0, "0.1", ""), overlay("b", 0, "0.2", "")}, labels: onDemand, want: 200_000},
		"a label that the machine has not": {rules: []Rule{{Name: "x", Requirements: []karpv1alpha1.NodeSelectorRequirement{{Key: "team", Operator: corev1.NodeSelectorOpDoesNotExist}}, PriceAdjustment: "+1"}}, labels: onDemand, want: 2 * dollar},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := NewBook(tc.overlays, tc.rules)
			if got := b.Price(tc.labels, dollar); got != tc.want {
				t.Errorf("the price is %d, want %d", got, tc.want)
			}
			if diff := cmp.Diff(tc.unused, b.Unused(only(tc.labels))); diff != "" {
				t.Errorf("unused rules (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLimitedRulesAddPrices(t *testing.T) {
	t.Parallel()
	n := int64(3)
	machines, dollars := &UpTo{Machines: &n}, &UpTo{USDPerHour: "7.5"}
	plan := Rule{Name: "plan", Requirements: []karpv1alpha1.NodeSelectorRequirement{in("karpenter.sh/capacity-type", "on-demand")}, PriceAdjustment: "-28%", UpTo: dollars}
	slots := Rule{Name: "slots", Price: "0", UpTo: machines}
	fee := Rule{Name: "fee", PriceAdjustment: "+0.05"}
	discount := Rule{Name: "discount", PriceAdjustment: "-10%"}
	dear := Rule{Name: "dear", Price: "9", UpTo: machines}
	contract := Rule{Name: "contract", Price: "0.40"}
	for name, tc := range map[string]struct {
		rules  []Rule
		labels map[string]string
		price  int64
		want   []catalog.LimitedPrice
		unused []int
	}{
		"dollars":                        {[]Rule{plan}, onDemand, dollar, []catalog.LimitedPrice{{MicroUSDPerHour: 720_000, Limit: "plan", Draws: 720_000}}, nil},
		"other machines":                 {[]Rule{plan}, spot, dollar, nil, []int{0}},
		"machines":                       {[]Rule{slots}, spot, dollar, []catalog.LimitedPrice{{MicroUSDPerHour: 10, Limit: "slots", Draws: 1}}, nil},
		"a fee is not in the commitment": {[]Rule{plan, fee}, onDemand, 1_050_000, []catalog.LimitedPrice{{MicroUSDPerHour: 770_000, Limit: "plan", Draws: 720_000}}, nil},
		"a discount before":              {[]Rule{discount, plan}, onDemand, 900_000, []catalog.LimitedPrice{{MicroUSDPerHour: 648_000, Limit: "plan", Draws: 648_000}}, nil},
		"one limit at a time": {[]Rule{plan, slots}, onDemand, dollar, []catalog.LimitedPrice{
			{MicroUSDPerHour: 720_000, Limit: "plan", Draws: 720_000}, {MicroUSDPerHour: 10, Limit: "slots", Draws: 1},
		}, nil},
		"a higher price":           {[]Rule{dear}, onDemand, dollar, nil, []int{0}},
		"a price that hides it":    {[]Rule{plan, contract}, onDemand, 400_000, nil, []int{0}},
		"a price that it replaces": {[]Rule{contract, slots}, onDemand, 400_000, []catalog.LimitedPrice{{MicroUSDPerHour: 10, Limit: "slots", Draws: 1}}, nil},
		"the same limit twice":     {[]Rule{slots, slots}, onDemand, dollar, []catalog.LimitedPrice{{MicroUSDPerHour: 10, Limit: "slots", Draws: 1}}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := NewBook(nil, tc.rules)
			types := b.Types(nil, []catalog.InstanceType{{Offerings: []catalog.Offering{{Labels: tc.labels, MicroUSDPerHour: dollar}}}})
			if o := types[0].Offerings[0]; o.MicroUSDPerHour != tc.price || !slices.Equal(o.Limited, tc.want) {
				t.Errorf("the price is %d, and %v within limits; want %d and %v", o.MicroUSDPerHour, o.Limited, tc.price, tc.want)
			}
			if diff := cmp.Diff(tc.unused, b.Unused(only(tc.labels))); diff != "" {
				t.Errorf("unused rules (-want +got):\n%s", diff)
			}
		})
	}
	if got, want := NewBook(nil, []Rule{plan, fee, slots}).Limits(), []catalog.PriceLimit{{Name: "plan", Amount: 7_500_000}, {Name: "slots", Amount: 3}}; !slices.Equal(got, want) {
		t.Errorf("the limits are %v, want %v", got, want)
	}
}

func TestParseRefusesLimitsWithoutSense(t *testing.T) {
	t.Parallel()
	for upTo, want := range map[string]string{
		"{}":                               "upTo must have either machines or usdPerHour",
		`{machines: 1, usdPerHour: "1"}`:   "upTo must have either machines or usdPerHour",
		"{machines: 0}":                    "upTo has 0 machines",
		"{machines: -1}":                   "upTo has -1 machines",
		"{machines: 1000000001}":           "upTo has 1000000001 machines",
		`{usdPerHour: "0"}`:                "must be a positive number",
		`{usdPerHour: "-3"}`:               "must be a positive number",
		`{usdPerHour: "1e3"}`:              "must be a positive number",
		`{usdPerHour: "1000000001"}`:       "must be a positive number",
		`{usdPerHour: "0.00000001"}`:       "must be a positive number",
		"{instances: 1}":                   "unknown field",
		`{machines: 1000000000}`:           "",
		`{usdPerHour: "1000000000"}`:       "",
		"{machines: 99999999999999999999}": "cannot unmarshal",
	} {
		_, err := Parse([]byte("[{name: x, priceAdjustment: -1%, upTo: " + upTo + "}]"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", upTo, err, want)
		}
	}
	var many strings.Builder
	for i := range MaxLimits + 1 {
		fmt.Fprintf(&many, "- {name: r%d, price: \"0\", upTo: {machines: 1}}\n", i)
	}
	if _, err := Parse([]byte(many.String())); err == nil || !strings.Contains(err.Error(), "11 rules for prices have upTo, and at most 10 may have it") {
		t.Errorf("too many limits: %v", err)
	}
}

// only has one offering with the labels.
func only(labels map[string]string) iter.Seq2[map[string]string, []catalog.InstanceType] {
	return func(yield func(map[string]string, []catalog.InstanceType) bool) {
		yield(nil, []catalog.InstanceType{{Offerings: []catalog.Offering{{Labels: labels}}}})
	}
}

func TestCheapestStaysCheapestAmongFreeMachines(t *testing.T) {
	t.Parallel()
	b := NewBook(nil, []Rule{{Name: "paid", Price: "0"}})
	if small, large := b.Price(onDemand, 52_600_000), b.Price(onDemand, 526_000_000); small >= large {
		t.Errorf("free machines cost %d and %d", small, large)
	}
}

func TestTypesHaveBothPrices(t *testing.T) {
	t.Parallel()
	types := []catalog.InstanceType{{Name: "g4dn.xlarge", Labels: map[string]string{"karpenter.k8s.aws/instance-family": "g4dn"}, Offerings: []catalog.Offering{
		{CapacityType: "on-demand", MicroUSDPerHour: dollar, Labels: map[string]string{"karpenter.sh/capacity-type": "on-demand"}},
		{CapacityType: "spot", MicroUSDPerHour: dollar / 2, Labels: map[string]string{"karpenter.sh/capacity-type": "spot"}},
	}}}
	rules := []Rule{{Name: "plan", PriceAdjustment: "-28%", Requirements: []karpv1alpha1.NodeSelectorRequirement{in("karpenter.sh/capacity-type", "on-demand"), in("class", "gpu")}}}
	b := NewBook(nil, rules)
	class := map[string]string{"class": "gpu"}
	priced := b.Types(class, types)
	if o := priced[0].Offerings; o[0].MicroUSDPerHour != 720_000 || o[0].ListPrice() != dollar || o[1].MicroUSDPerHour != dollar/2 || o[1].ListPrice() != dollar/2 {
		t.Errorf("the prices are %+v", o)
	}
	if diff := cmp.Diff(priced, b.Types(class, priced)); diff != "" {
		t.Errorf("a discount counts twice (-once +twice):\n%s", diff)
	}
	if types[0].Offerings[0].MicroUSDPerHour != dollar {
		t.Error("the types of the catalog were changed")
	}
	if same := (*Book)(nil).Types(class, types); &same[0] != &types[0] {
		t.Error("without rules, the types were copied")
	}
}

func TestParseReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	rules, err := Parse([]byte("- name: plan\n  requirements:\n  - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}\n  priceAdjustment: -28%\n- {name: t4, price: \"0.35\"}\n"))
	if err != nil || len(rules) != 2 || rules[0].PriceAdjustment != "-28%" {
		t.Errorf("parsed %+v, %v", rules, err)
	}
	if values, err := Parse([]byte("replicas: 2\nprices:\n- {name: t4, price: \"0.35\"}\n")); err != nil || len(values) != 1 || values[0].Name != "t4" {
		t.Errorf("the rules of the chart's values are %+v, %v", values, err)
	}
	for text, want := range map[string]string{
		"prices: [{name: a}]": "either price or priceAdjustment",
		"- {price: '1'}":      "rule 0 for prices has no name",
		"- {name: a, price: '1'}\n- {name: a, price: '2'}": `two rules for prices have the name "a"`,
		"- {name: a}": "either price or priceAdjustment",
		"- {name: a, price: '1', priceAdjustment: '+1'}": "either price or priceAdjustment",
		"- {name: a, price: '-1'}":                       `price "-1" must be a number of US dollars per hour`,
		"- {name: a, price: 'NaN'}":                      `price "NaN" must be`,
		"- {name: a, priceAdjustment: '5%'}":             `priceAdjustment "5%" must be a percentage with a sign`,
		"- {name: a, prize: '1'}":                        "prize",
		"{a: b}":                                         "reading the prices",
		"- {name: a, price: '1', requirements: [{key: k, operator: In}]}":                     `operator In of requirement "k" needs values`,
		"- {name: a, price: '1', requirements: [{key: k, operator: Exists, values: [x]}]}":    `must have no values, but has x`,
		"- {name: a, price: '1', requirements: [{key: k, operator: Gt, values: [x]}]}":        `needs an integer that is not negative, but has x`,
		"- {name: a, price: '1', requirements: [{key: k, operator: Gt, values: ['1', '2']}]}": `needs one integer, but has 1, 2`,
		"- {name: a, price: '1', requirements: [{key: k, operator: Same, values: ['1']}]}":    `unknown operator "Same"`,
		"- {name: a, price: '1', requirements: [{operator: In, values: ['1']}]}":              `a requirement has no key`,
		strings.Repeat("- {name: a, price: '1'}\n", MaxRules+1):                               "at most 1000 are allowed",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("- {name: a, priceAdjustment: '-28%', requirements: [{key: k, operator: Gt, values: ['1']}]}")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := Parse([]byte(text))
		if err != nil {
			return
		}
		if price := NewBook(nil, rules).Price(onDemand, dollar); price < 1 || price > planner.MaxPrice {
			t.Errorf("the price is %d", price)
		}
	})
}

// Rules that nobody means give a price that a plan can count with, and the last rule that sets the price decides, whatever was before it.
func TestPricesOfHostileRulesAreSaturated(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("9", 400)
	values := []string{"0", "0.0000001", "0.526", "1000000000", huge, "+0", "-0", "-1000000000", "+1000000000", "+" + huge, "-" + huge, "-100%", "-28%", "+" + huge + "%", "-" + huge + "%"}
	rapid.Check(t, func(t *rapid.T) {
		var rules []Rule
		want := int64(0)
		for i := range rapid.IntRange(1, 6).Draw(t, "rules") {
			r := Rule{Name: fmt.Sprint(i)}
			if text := rapid.SampledFrom(values).Draw(t, "value"); strings.ContainsAny(text, "+-") {
				r.PriceAdjustment = text
			} else {
				r.Price = text
			}
			switch rapid.IntRange(0, 4).Draw(t, "limit") {
			case 0:
				r.UpTo = &UpTo{Machines: new(int64(rapid.IntRange(1, MaxUpTo).Draw(t, "machines")))}
			case 1:
				r.UpTo = &UpTo{USDPerHour: rapid.SampledFrom([]string{"0.000001", "1", "1000000000"}).Draw(t, "dollars")}
			}
			rules = append(rules, r)
		}
		if rapid.Bool().Draw(t, "sets the price at last") {
			rules, want = append(rules, Rule{Name: "last", Price: "5"}), 5*dollar
		}
		text, err := yaml.Marshal(rules)
		if err != nil {
			t.Fatal(err)
		}
		read, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		list := rapid.SampledFrom([]int64{1, 526_000, planner.MaxPrice}).Draw(t, "list")
		b := NewBook(nil, read)
		price := b.Price(onDemand, list)
		if price < 1 || price > planner.MaxPrice || want > 0 && list < planner.MaxPrice && price != want {
			t.Fatalf("the price is %d, want %d", price, want)
		}
		types := b.Types(nil, []catalog.InstanceType{{Offerings: []catalog.Offering{{Labels: onDemand, MicroUSDPerHour: list}}}})
		for _, l := range types[0].Offerings[0].Limited {
			if l.MicroUSDPerHour < 1 || l.MicroUSDPerHour >= price || l.Draws < 1 || l.Draws > planner.MaxPrice {
				t.Fatalf("within %s it costs %d and draws %d, and %d beyond", l.Limit, l.MicroUSDPerHour, l.Draws, price)
			}
		}
		for _, l := range b.Limits() {
			if l.Amount < 1 || l.Amount > planner.MaxAmount {
				t.Fatalf("the limit %s is %d", l.Name, l.Amount)
			}
		}
	})
}

// TestOverlaysAreKarpenters compares with Karpenter's own arithmetic and its own matching.
func TestOverlaysAreKarpenters(t *testing.T) {
	t.Parallel()
	operators := []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt, "Gte", "Lte"}
	rapid.Check(t, func(t *rapid.T) {
		keys := []string{"a.b/c", "team", "size"}
		labels := map[string]string{}
		for _, key := range keys {
			if rapid.Bool().Draw(t, "has "+key) {
				labels[key] = fmt.Sprint(rapid.IntRange(0, 3).Draw(t, key))
			}
		}
		var requirements []karpv1alpha1.NodeSelectorRequirement
		for range rapid.IntRange(0, 3).Draw(t, "requirements") {
			r := karpv1alpha1.NodeSelectorRequirement{Key: rapid.SampledFrom(keys).Draw(t, "key"), Operator: rapid.SampledFrom(operators).Draw(t, "operator")}
			switch r.Operator {
			case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
			case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
				r.Values = []string{fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "value")), fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "value"))}
			default:
				r.Values = []string{fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "value"))}
			}
			requirements = append(requirements, r)
		}
		text := rapid.SampledFrom([]string{"0.35", "0", "7", "+0.2", "-0.3", "-2", "+10%", "-28%", "-100%", "+.5", "-12.5%"}).Draw(t, "price")
		o := overlay("o", 1, text, "", requirements...)
		if strings.ContainsAny(text, "+-") {
			o = overlay("o", 1, "", text, requirements...)
		}
		list := rapid.Int64Range(1, 100*dollar).Draw(t, "list")
		want := list
		plain := make([]corev1.NodeSelectorRequirement, 0, len(requirements))
		for _, r := range requirements {
			plain = append(plain, r.AsNodeSelectorRequirement())
		}
		if scheduling.NewLabelRequirements(labels).IsCompatible(scheduling.NewNodeSelectorRequirements(plain...)) {
			want = max(catalog.Free(list), int64(math.Round(cloudprovider.AdjustedPrice(float64(list)/dollar, text)*dollar)))
		}
		if got := NewBook([]karpv1alpha1.NodeOverlay{o}, nil).Price(labels, list); got < want-1 || got > want+1 {
			t.Fatalf("the price of %v is %d, want %d", labels, got, want)
		}
	})
}

func BenchmarkThousandRules(b *testing.B) {
	rules := make([]Rule, MaxRules)
	for i := range rules {
		rules[i] = Rule{Name: fmt.Sprint(i), Requirements: []karpv1alpha1.NodeSelectorRequirement{in("node.kubernetes.io/instance-type", fmt.Sprintf("g%d.xlarge", i))}, PriceAdjustment: "-1%"}
	}
	book := NewBook(nil, slices.Clone(rules))
	for b.Loop() {
		book.Price(onDemand, dollar)
	}
}
