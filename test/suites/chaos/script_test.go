package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// fault is something that goes wrong, or that somebody changes while all else goes on.
type fault string

const (
	// killController ends the controller as a crash does, and starts it again.
	killController fault = "the controller is killed"
	// skewClock does so too, and meanwhile moves all times that the controller has written, as if its clock had been wrong when it wrote them.
	skewClock fault = "the controller is killed and comes back with another clock"
	// restartAPIServer ends the API server at once and has it come back a little later.
	restartAPIServer fault = "the API server is restarted"
	// refuseType has an instance type refused everywhere for a while.
	refuseType fault = "an instance type is refused"
	// throttleEC2 has EC2 turn all calls away for a while.
	throttleEC2 fault = "EC2 turns calls away"
	// interruptSpot gives notice of a spot machine, and takes it after a while.
	interruptSpot fault = "a spot machine is interrupted"
	// stopMachine ends a machine without a word.
	stopMachine fault = "a machine stops"
	// silenceKubelet has nothing be heard of a Node for a while, though its machine runs.
	silenceKubelet fault = "a kubelet falls silent"
	// crashAgents has the replicas of a pool's nodes vanish for a while, and none come on new ones.
	crashAgents fault = "the agents of a pool crash"
	// delayAgents has replicas come late on new nodes for a while.
	delayAgents fault = "the agents of a pool are late"
	// editBudget gives a NodePool another disruption budget for a while.
	editBudget fault = "a disruption budget is edited"
	// editClass gives a GPUNodeClass another number of replicas and another idle time for a while.
	editClass fault = "a GPUNodeClass is edited"
	// drift changes the template of a NodePool.
	drift fault = "a NodePool's template is changed"
	// changeImage has an EC2NodeClass select another image.
	changeImage fault = "an EC2NodeClass's image is changed"
	// cutEC2 has EC2 close the connections of all calls for a while.
	cutEC2 fault = "EC2 cannot be reached"
	// hangEC2 has EC2 answer no call for a while.
	hangEC2 fault = "EC2 hangs"
	// besetTenant has a tenant create hostile pods for a while.
	besetTenant fault = "a tenant creates hostile pods"
	// crowdTenant has a tenant create many pods for a while that are each of a class of their own.
	crowdTenant fault = "a tenant creates many classes of pods"
	// meddleOthers has others create Nodes, NodePools, NodeClaims and events for a while that are not what they say.
	meddleOthers fault = "others create hostile objects"
	// keepTaint has the machines that a pool gets for a while keep a startup taint for ever.
	keepTaint fault = "a startup taint stays"
	// dieYoung has a kubelet die before its machine has started.
	dieYoung fault = "a kubelet dies before its machine has started"
	// debugNodes has somebody debug Nodes for a while: any, and some whose replicas never come.
	debugNodes fault = "somebody debugs broken nodes"
	// lieOfReplicas has agents say for a while what is not so.
	lieOfReplicas fault = "the agents of a pool lie"
)

// replicasTimeout is how long a machine may be without its replicas. Agents that are late take 8 s, and on a machine with much to do all take longer.
const replicasTimeout = 20 * time.Second

// weights are how often each fault is in a round of them. What makes every machine of a pool drift is rare.
var weights = map[fault]int{
	killController: 4, skewClock: 2, restartAPIServer: 1, refuseType: 2, throttleEC2: 1, interruptSpot: 2, stopMachine: 1, silenceKubelet: 1,
	crashAgents: 1, delayAgents: 1, editBudget: 1, editClass: 1, drift: 1, changeImage: 1,
	cutEC2: 1, hangEC2: 1, besetTenant: 2, crowdTenant: 1, meddleOthers: 1, keepTaint: 1, dieYoung: 1, debugNodes: 1, lieOfReplicas: 2,
}

// lasting are the faults that begin and end.
var lasting = []fault{
	refuseType, throttleEC2, interruptSpot, silenceKubelet, crashAgents, delayAgents, editBudget, editClass,
	cutEC2, hangEC2, besetTenant, crowdTenant, meddleOthers, keepTaint, dieYoung, debugNodes, lieOfReplicas,
}

// act is a moment of a script: a fault begins or ends.
type act struct {
	at    time.Duration
	fault fault
	ends  bool
	// number is of the fault, so that its end is known to be of its beginning.
	number int
	// pick decides which of several things it happens to, or how.
	pick int
}

func (a act) String() string {
	if a.ends {
		return fmt.Sprintf("#%d ends: %s", a.number, a.fault)
	}
	return fmt.Sprintf("#%d %s", a.number, a.fault)
}

// script draws faults for so long. Every fault comes once before one comes too often, and all have ended when the time is over.
func script(random *rand.Rand, during time.Duration) []act {
	gap := min(max(during/15, 2*time.Second), 6*time.Second)
	var acts []act
	var round []fault
	number := 0
	for at := time.Second; at < during; at += gap/2 + time.Duration(random.Int64N(int64(gap))) {
		if len(round) == 0 {
			round = shuffled(random)
		}
		number++
		a := act{at: at, fault: round[0], number: number, pick: random.IntN(1 << 16)}
		round = round[1:]
		acts = append(acts, a)
		if slices.Contains(lasting, a.fault) {
			lasts := 4*time.Second + time.Duration(random.Int64N(int64(2*gap)))
			if a.fault == crashAgents || a.fault == debugNodes {
				lasts += replicasTimeout // Else nobody would have to do anything about it.
			}
			if a.fault == keepTaint || a.fault == dieYoung {
				lasts += 8 * time.Second // A machine has to come meanwhile.
			}
			a.at, a.ends = min(at+lasts, during), true
			acts = append(acts, a)
		}
	}
	slices.SortStableFunc(acts, func(a, b act) int { return cmp.Compare(a.at, b.at) })
	return acts
}

// shuffled is a round of faults, each kind once before one comes a second time.
func shuffled(random *rand.Rand) []fault {
	left := maps.Clone(weights)
	var round []fault
	for len(left) > 0 {
		var each []fault
		for f := range left {
			each = append(each, f)
			if left[f]--; left[f] == 0 {
				delete(left, f)
			}
		}
		slices.Sort(each) // A map's order is not the seed's.
		random.Shuffle(len(each), func(i, j int) { each[i], each[j] = each[j], each[i] })
		round = append(round, each...)
	}
	return round
}

func TestASeedAlwaysDrawsTheSameScriptAndAllFaultsEnd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		for _, during := range []time.Duration{5 * time.Second, 40 * time.Second, 15 * time.Minute} {
			acts := script(rand.New(rand.NewPCG(seed, 1)), during)
			if again := script(rand.New(rand.NewPCG(seed, 1)), during); !slices.Equal(acts, again) {
				t.Fatalf("seed %d draws two scripts", seed)
			}
			open, drawn := map[int]bool{}, map[fault]bool{}
			for _, a := range acts {
				if a.at > during {
					t.Fatalf("seed %d: %s after %s", seed, a, a.at)
				}
				drawn[a.fault] = true
				if slices.Contains(lasting, a.fault) {
					if open[a.number] != a.ends {
						t.Fatalf("seed %d: %s, out of turn", seed, a)
					}
					open[a.number] = !a.ends
				}
			}
			for number, is := range open {
				if is {
					t.Fatalf("seed %d: fault %d never ends", seed, number)
				}
			}
			if during > time.Minute && len(drawn) != len(weights) {
				t.Fatalf("seed %d draws %d of %d kinds of faults", seed, len(drawn), len(weights))
			}
		}
	}
}
