package snapshot

import (
	"maps"
	"math/bits"
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/density"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// maxWorkPrices is the largest number of prices of work that one offering gets in addition to its price. Pods with others use the next higher one.
const maxWorkPrices = 4

// priceWork makes the plan minimize the price of work where classes state their throughput. A machine on which a pod does its work in f times the time of the pod's fastest
// offering costs f times its price for that work. So each offering has copies at such prices, of which the difference is their surcharge. A copy admits the classes that are at most as slow on
// it. Other classes are never slower, so all copies admit them.
func (v *View) priceWork(waiting []*waitingClass) {
	if !slices.ContainsFunc(waiting, func(w *waitingClass) bool { return w.shape.throughput != nil }) {
		return
	}
	v.longer = make([]slowness, len(v.Classes))
	slow := make([]map[int]slowness, len(v.Classes))
	prices := map[int][]slowness{} // By offering.
	for c, w := range waiting {
		slow[c], v.longer[c] = v.slownessOf(w, &v.Classes[c])
		for i, f := range slow[c] {
			if f > asFast && !slices.Contains(prices[i], f) {
				prices[i] = append(prices[i], f)
			}
		}
	}
	copies := map[int][]int{} // By offering, in the order of the slowness.
	for _, i := range slices.Sorted(maps.Keys(prices)) {
		slices.Sort(prices[i])
		if n := len(prices[i]); n > maxWorkPrices {
			prices[i] = append(prices[i][:maxWorkPrices-1:maxWorkPrices-1], prices[i][n-1])
		}
		for _, f := range prices[i] {
			copies[i] = append(copies[i], v.addCopy(i, f))
		}
	}
	for c := range v.Classes {
		v.admitCopies(&v.Classes[c], slow[c], prices, copies)
	}
}

// PricesWork reports whether some pods state their throughput. Plans then minimize the price of work, and another plan may have a lower hourly price.
func (v *View) PricesWork() bool { return v.longer != nil }

// Work returns the price of the work of a plan for the pods of the view, and a lower bound on it. Plans minimize it relative to the fastest machine that pods may have. To compare views
// with other machines, Work has it relative to a machine whose GPUs they have to themselves.
func (v *View) Work(p planner.Plan) (price, bound planner.MicroUSD) {
	class := v.ClassByPod()
	for _, l := range p.Launches {
		longer := asFast
		for _, pod := range l.Pods {
			longer = max(longer, v.longer[class[pod]])
		}
		price += planner.MicroUSD(timesMillionths(int64(v.Snapshot.Offerings[l.Offering].Price), int64(longer)))
	}
	return price, planner.MicroUSD(timesMillionths(int64(p.Bound), int64(slices.Min(v.longer))))
}

// slownessOf returns how slow each of its offerings is for the pods of a class, without those that they do not use, and how many times as long they take on the fastest of these as on
// one whose GPUs they have to themselves.
func (v *View) slownessOf(w *waitingClass, class *planner.Class) (slow map[int]slowness, longer slowness) {
	slow = map[int]slowness{}
	if w.shape.throughput == nil {
		for _, i := range class.Offerings {
			slow[i] = asFast
		}
		return slow, asFast
	}
	// A pod takes slowdown / on hours for a unit of work. The fastest machine is one that it fits on.
	type speed struct{ on, slowdown int64 }
	speeds, best, alone := map[int]speed{}, speed{0, 1}, int64(0)
	for _, i := range class.Offerings {
		s := speed{w.shape.throughput.On(v.Offerings[i].Type.GPU.Name), v.slowdown(class, i)}
		if s.on == 0 {
			continue
		}
		speeds[i] = s
		if podsFitting(&v.Snapshot.Offerings[i], class) == 0 {
			continue
		}
		alone = max(alone, s.on)
		if s.on*best.slowdown > best.on*s.slowdown {
			best = s
		}
	}
	for i, s := range speeds {
		slow[i] = slowness(scaledUp(int64(asFast), s.slowdown*best.on, s.on*best.slowdown))
	}
	if alone == 0 {
		return slow, asFast
	}
	return slow, slowness(scaledUp(best.slowdown, alone, best.on))
}

// scaledUp returns n * a / b for positive numbers, rounded up. The result must fit an int64.
func scaledUp(n, a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(a))
	quotient, rest := bits.Div64(hi, lo, uint64(b))
	if rest > 0 {
		quotient++
	}
	return int64(quotient) //nolint:gosec // As the comment says.
}

// addCopy adds a copy of an offering at the price of work and returns its index.
func (v *View) addCopy(i int, f slowness) int {
	o := v.Snapshot.Offerings[i]
	price := min(planner.MaxPrice, planner.MicroUSD(timesMillionths(int64(o.Price), int64(f))))
	o.Surcharge, o.Price = price-o.Price, price
	at := len(v.Offerings)
	v.Offerings, v.Snapshot.Offerings = append(v.Offerings, v.Offerings[i]), append(v.Snapshot.Offerings, o)
	for p := range v.Snapshot.Pools {
		for m := range v.Snapshot.Pools[p].MinValues {
			values := &v.Snapshot.Pools[p].MinValues[m].Values
			*values = append(slices.Clone(*values), (*values)[i])
		}
	}
	if v.slow == nil {
		v.slow = map[int]slowness{}
	}
	v.slow[at] = f
	return at
}

// timesMillionths returns price * f / 1,000,000, rounded up. The price is at most planner.MaxPrice, and f at most 2·10^15, so it saturates far below an overflow.
func timesMillionths(price, f int64) int64 {
	whole, part := f/int64(asFast), f%int64(asFast)
	if whole > planner.MaxPrice/max(1, price) {
		return planner.MaxPrice
	}
	return price*whole + (price*part+int64(asFast)-1)/int64(asFast)
}

// admitCopies makes a class use the copies on which it is not slower than their price says, and no machine at a price that is too low for it.
func (v *View) admitCopies(class *planner.Class, slow map[int]slowness, prices map[int][]slowness, copies map[int][]int) {
	admitted := class.Offerings[:0:0]
	in := make([]map[int]bool, len(class.Preferences))
	for p := range class.Preferences {
		in[p] = map[int]bool{}
		for _, i := range class.Preferences[p].Offerings {
			in[p][i] = true
		}
		class.Preferences[p].Offerings = slices.Clone(class.Preferences[p].Offerings)
	}
	for _, i := range class.Offerings {
		f, uses := slow[i]
		if !uses {
			continue
		}
		if f <= asFast {
			admitted = append(admitted, i)
		}
		for k, at := range copies[i] {
			if prices[i][k] < f {
				continue
			}
			admitted = append(admitted, at)
			for p := range class.Preferences {
				if in[p][i] {
					class.Preferences[p].Offerings = append(class.Preferences[p].Offerings, at)
				}
			}
		}
	}
	slices.Sort(admitted)
	for p := range class.Preferences {
		slices.Sort(class.Preferences[p].Offerings)
	}
	if len(admitted) == 0 && len(class.Offerings) > 0 {
		class.NoOffering = &planner.Refusal{Reason: planner.ReasonNoPool, Message: "its annotation " + v1alpha1.ThroughputAnnotation + " names no GPU of the machines that would take it: name one of them, or state *=1.0"}
	}
	class.Offerings = admitted
}

// slowdown returns how many times as long a pod of a class takes for its work on a machine of an offering as if it had the GPU to itself, in millionths, once the
// machine is full of such pods. It is [density.AsAlone] unless the GPUNodeClass says how busy pods are.
func (v *View) slowdown(class *planner.Class, offering int) int64 {
	o := &v.Snapshot.Offerings[offering]
	sharing := v.Pools[o.Pool].Class.Spec.Sharing
	if sharing.BusyPercent == nil {
		return density.AsAlone
	}
	mode := density.TimeSlicing
	if sharing.Strategy == v1alpha1.StrategyMPS || sharing.MemorySlots().Enforcement == nodecontract.EnforceMPS {
		mode = density.MPS
	}
	gpus, replicas := v.Offerings[offering].Type.GPU.Count, v.Offerings[offering].ReplicasPerGPU
	if sharing.Strategy == v1alpha1.StrategyMIG {
		gpus, replicas = v.Offerings[offering].replicas()/sharing.PodsPerInstance(), sharing.PodsPerInstance()
	}
	pods := min(replicas/max(1, class.Requests.Replicas), facts.CeilDiv(podsFitting(o, class), max(1, gpus)))
	if class.GPUMemoryBytes > 0 && sharing.Strategy != v1alpha1.StrategyMIG {
		pods = min(pods, v.Offerings[offering].Type.GPU.UsableMiB()*facts.BytesPerMiB/class.GPUMemoryBytes)
	}
	return density.Slowdown(mode, pods, int64(*sharing.BusyPercent))
}

// podsFitting returns how many pods of a class fit on an empty machine by their requests. It is 0 if no GPU has the device memory for one.
func podsFitting(o *planner.Offering, class *planner.Class) int64 {
	has := func(g planner.GPU) bool { return g.MemoryBytes >= class.GPUMemoryBytes }
	if class.GPUMemoryBytes > 0 && !slices.ContainsFunc(o.GPUs, has) {
		return 0
	}
	most := o.Free.Pods
	for _, of := range [][2]int64{
		{o.Free.MilliCPU, class.Requests.MilliCPU},
		{o.Free.MemoryBytes, class.Requests.MemoryBytes},
		{o.Free.EphemeralBytes, class.Requests.EphemeralBytes},
		{o.Free.Replicas, class.Requests.Replicas},
	} {
		if of[1] > 0 {
			most = min(most, of[0]/of[1])
		}
	}
	return most
}
