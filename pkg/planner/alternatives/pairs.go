package alternatives

import (
	"cmp"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// maxZones limits the number of zones, because all sets of zones are tried. No region of EC2 has more than six.
const maxZones = 8

// pair is an instance type in a zone. A NodeClaim admits each of its instance types in each of its zones.
type pair struct{ instanceType, zone string }

// widest chooses the set of zones, including the given one, with the most pairs. For each set, it omits every instance type that has an unsound pair in it.
// Pairs that are not offered do not count, because the cloud cannot launch them.
func widest(sound map[pair]bool, chosen pair) []pair {
	if !sound[chosen] {
		return nil // Another offering of the same type and zone is unsuitable, and no NodeClaim can exclude it.
	}
	types, zones := axes(sound, chosen.zone)
	offered, good := make([]uint, len(types)), make([]uint, len(types)) // Sets of zones as bits.
	for i, t := range types {
		for j, zone := range zones {
			if is, ok := sound[pair{t, zone}]; ok {
				offered[i] |= 1 << j
				good[i] |= bit(is) << j
			}
		}
	}
	own := slices.Index(types, chosen.instanceType)
	var best uint
	most := 0
	for set := uint(1); set < 1<<len(zones); set += 2 { // Only sets with the first zone, which is the chosen one.
		n := 0
		for i := range types {
			if within := offered[i] & set; within&^good[i] == 0 {
				n += bits.OnesCount(within)
			} else if i == own {
				n = math.MinInt32
			}
		}
		if n > most {
			best, most = set, n
		}
	}
	var out []pair
	for i, t := range types {
		for j, zone := range zones {
			if within := offered[i] & best; within&^good[i] == 0 && within>>j&1 == 1 {
				out = append(out, pair{t, zone})
			}
		}
	}
	return out
}

// axes returns the types and the zones that have a sound pair. The chosen zone comes first, then those with the most sound pairs.
func axes(sound map[pair]bool, chosen string) (types, zones []string) {
	many := map[string]int{}
	for at, is := range sound {
		if is {
			types = append(types, at.instanceType)
			many[at.zone]++
		}
	}
	slices.Sort(types)
	zones = slices.SortedFunc(maps.Keys(many), func(a, b string) int {
		return cmp.Or(-cmp.Compare(bit(a == chosen), bit(b == chosen)), cmp.Compare(many[b], many[a]), strings.Compare(a, b))
	})
	return slices.Compact(types), zones[:min(len(zones), maxZones)]
}

func bit(b bool) uint {
	if b {
		return 1
	}
	return 0
}
