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

// fault is something that goes wrong or that a user changes.
type fault string

const (
	// killController kills the controller and restarts it.
	killController fault = "the controller is killed"
	// skewClock does the same and meanwhile shifts all timestamps that the controller has written, as if its clock had been wrong.
	skewClock fault = "the controller is killed and comes back with another clock"
	// restartAPIServer kills the API server and restarts it a little later.
	restartAPIServer fault = "the API server is restarted"
	// refuseType makes EC2 refuse an instance type in all zones for a while.
	refuseType fault = "an instance type is refused"
	// throttleEC2 makes EC2 throttle all calls for a while.
	throttleEC2 fault = "EC2 turns calls away"
	// interruptSpot sends a spot interruption notice, and terminates the machine after a while.
	interruptSpot fault = "a spot machine is interrupted"
	// stopMachine terminates a machine without notice.
	stopMachine fault = "a machine stops"
	// silenceKubelet stops the heartbeats of a Node for a while, although its machine runs.
	silenceKubelet fault = "a kubelet falls silent"
	// crashAgents removes the replicas of a pool's nodes for a while; new nodes get none.
	crashAgents fault = "the agents of a pool crash"
	// delayAgents delays the replicas of new nodes for a while.
	delayAgents fault = "the agents of a pool are late"
	// editBudget changes the disruption budget of a NodePool for a while.
	editBudget fault = "a disruption budget is edited"
	// editClass changes the number of replicas and the idle time of a GPUNodeClass for a while.
	editClass fault = "a GPUNodeClass is edited"
	// drift changes the template of a NodePool.
	drift fault = "a NodePool's template is changed"
	// changeImage makes an EC2NodeClass select another image.
	changeImage fault = "an EC2NodeClass's image is changed"
	// cutEC2 makes EC2 close the connections of all calls for a while.
	cutEC2 fault = "EC2 cannot be reached"
	// hangEC2 makes EC2 answer no call for a while.
	hangEC2 fault = "EC2 hangs"
	// besetTenant makes a tenant create hostile pods for a while.
	besetTenant fault = "a tenant creates hostile pods"
	// crowdTenant makes a tenant create many pods for a while, each in a class of its own.
	crowdTenant fault = "a tenant creates many classes of pods"
	// meddleOthers makes others create bogus Nodes, NodePools, NodeClaims and events for a while.
	meddleOthers fault = "others create hostile objects"
	// keepTaint makes the machines that a pool gets for a while keep a startup taint forever.
	keepTaint fault = "a startup taint stays"
	// dieYoung kills a kubelet before its node is initialized.
	dieYoung fault = "a kubelet dies before its machine has started"
	// debugNodes creates debugger pods on Nodes for a while: on any Node, and on Nodes that never get replicas.
	debugNodes fault = "somebody debugs broken nodes"
	// lieOfReplicas makes agents report wrong numbers of replicas for a while.
	lieOfReplicas fault = "the agents of a pool lie"
)

// replicasTimeout is how long a machine may be without its replicas. Delayed agents take 8 s, and all agents are slower on a busy machine.
const replicasTimeout = 20 * time.Second

// weights are how often each fault occurs in a round. Faults that make every machine of a pool drift are rare.
var weights = map[fault]int{
	killController: 4, skewClock: 2, restartAPIServer: 1, refuseType: 2, throttleEC2: 1, interruptSpot: 2, stopMachine: 1, silenceKubelet: 1,
	crashAgents: 1, delayAgents: 1, editBudget: 1, editClass: 1, drift: 1, changeImage: 1,
	cutEC2: 1, hangEC2: 1, besetTenant: 2, crowdTenant: 1, meddleOthers: 1, keepTaint: 1, dieYoung: 1, debugNodes: 1, lieOfReplicas: 2,
}

// lasting are the faults that have an end.
var lasting = []fault{
	refuseType, throttleEC2, interruptSpot, silenceKubelet, crashAgents, delayAgents, editBudget, editClass,
	cutEC2, hangEC2, besetTenant, crowdTenant, meddleOthers, keepTaint, dieYoung, debugNodes, lieOfReplicas,
}

// act is the beginning or the end of a fault.
type act struct {
	at    time.Duration
	fault fault
	ends  bool
	// number is the number of the fault. It connects its end to its beginning.
	number int
	// pick chooses the target or the variant of the fault.
	pick int
}

func (a act) String() string {
	if a.ends {
		return fmt.Sprintf("#%d ends: %s", a.number, a.fault)
	}
	return fmt.Sprintf("#%d %s", a.number, a.fault)
}

// script draws faults for the given time. All faults occur before one occurs more often than its weight, and all have ended by then.
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
				lasts += replicasTimeout // Otherwise the controller would not have to act.
			}
			if a.fault == keepTaint || a.fault == dieYoung {
				lasts += 8 * time.Second // A machine has to be launched meanwhile.
			}
			a.at, a.ends = min(at+lasts, during), true
			acts = append(acts, a)
		}
	}
	slices.SortStableFunc(acts, func(a, b act) int { return cmp.Compare(a.at, b.at) })
	return acts
}

// shuffled returns a round of faults. Each fault occurs once before any occurs again.
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
		slices.Sort(each) // The order must depend on the seed alone.
		random.Shuffle(len(each), func(i, j int) { each[i], each[j] = each[j], each[i] })
		round = append(round, each...)
	}
	return round
}

func TestScriptIsDeterministicAndAllFaultsEnd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		for _, during := range []time.Duration{5 * time.Second, 40 * time.Second, 15 * time.Minute} {
			acts := script(rand.New(rand.NewPCG(seed, 1)), during)
			if again := script(rand.New(rand.NewPCG(seed, 1)), during); !slices.Equal(acts, again) {
				t.Fatalf("seed %d draws different scripts", seed)
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
