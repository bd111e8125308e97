package plugin_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/plugin"
)

// bothKubelets runs a test with a kubelet as of 1.37, and with one from before.
func bothKubelets(t *testing.T, f func(w *world), change ...func(*plugin.Config)) {
	t.Helper()
	for name, before := range map[string]bool{"as of 1.37": false, "before 1.37": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				w.kubelet.Before137 = before
				f(w)
			}, change...)
		})
	}
}

// successor starts another agent beside this one. The world has the new one from now on.
func (w *world) successor(config string, n int, change ...func(*plugin.Config)) (endFormer func()) {
	w.t.Helper()
	clk.Sleep(time.Second)
	former := w.stop
	w.startAgent(change...)
	w.must(config, gpus(n))
	return former
}

// sockets returns the names of the agents' sockets.
func (w *world) sockets() []string {
	return slices.DeleteFunc(w.net.List(w.kubelet.Dir), func(name string) bool { return !strings.HasPrefix(name, "karve-") })
}

// lowest returns the smallest number of replicas during f.
func (w *world) lowest(f func()) int {
	ctx, cancel := context.WithCancel(w.t.Context())
	low := make(chan int)
	go func() {
		least := w.kubelet.Allocatable(whole)
		for ctx.Err() == nil {
			clk.Sleep(5 * time.Millisecond)
			least = min(least, w.kubelet.Allocatable(whole))
		}
		low <- least
	}()
	f()
	cancel()
	return <-low
}

func TestAgentsTakeOverWithoutMomentAtZero(t *testing.T) {
	t.Parallel()
	node := &nodeHas{}
	node.n.Store(4) // The Node shows what the kubelet has.
	bothKubelets(t, func(w *world) {
		w.startKubelet()
		if err := w.net.Abandon(w.t.Context(), "/plugins/nvidia-gpu.sock"); err != nil { // Of an agent of an older version.
			w.t.Fatal(err)
		}
		w.must(replicas(4), gpus(1))
		w.admit("pod")
		for i := range 3 {
			requests := len(w.kubelet.Requests())
			low := w.lowest(func() {
				end := w.successor(replicas(4), 1, func(c *plugin.Config) { c.Allocatable = node })
				clk.Sleep(12 * time.Second) // Both serve.
				w.want(whole, 4)
				w.admit(fmt.Sprint("new-", i))
				w.kubelet.Delete(fmt.Sprint("new-", i))
				end()
				clk.Sleep(12 * time.Second)
			})
			w.want(whole, 4)
			w.admit(fmt.Sprint("after-", i))
			w.kubelet.Delete(fmt.Sprint("after-", i))
			// A kubelet before 1.37 forgets the new plugin when the stream of the old one ends.
			want, least := 1, 4
			if w.kubelet.Before137 {
				want, least = 2, 0
			}
			if n := len(w.kubelet.Requests()) - requests; n != want || low < least {
				w.t.Errorf("registered %d times, with a low of %d, want %d and %d", n, low, want, least)
			}
		}
		if stood := w.standbyMessages(); len(stood) > 0 {
			w.t.Errorf("stood back: %q", stood)
		}
	}, func(c *plugin.Config) { c.Allocatable = node })
}

func TestListOfNewestAgentCounts(t *testing.T) {
	t.Parallel()
	bothKubelets(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		former := w.m
		end := w.successor(replicas(6), 1)
		w.want(whole, 6)
		former.SetHealth(uuid(0), false)
		clk.Sleep(time.Minute)
		w.want(whole, 6)
		// The newer one ends, and the former still serves.
		newer := w.stop
		w.stop = end
		former.SetHealth(uuid(0), true)
		newer()
		clk.Sleep(20 * time.Second)
		w.want(whole, 4)
		// Both come back after a restart of the kubelet. The newest agent's list stays.
		end = w.successor(replicas(7), 1)
		w.kubelet.Stop()
		w.startKubelet()
		clk.Sleep(30 * time.Second)
		w.want(whole, 7)
		requests := len(w.kubelet.Requests())
		clk.Sleep(time.Minute)
		if n := len(w.kubelet.Requests()) - requests; n > 0 {
			w.t.Errorf("registered %d times while nothing changed", n)
		}
		end()
		clk.Sleep(20 * time.Second)
		w.want(whole, 7)
	})
}

func TestRegistrationNeverReusesPath(t *testing.T) {
	t.Parallel()
	bothKubelets(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		for range 5 {
			w.kubelet.Drop(whole)
			w.settle()
			w.stop()
			w.startAgent()
			w.must(replicas(4), gpus(1))
			w.want(whole, 4)
		}
		seen := map[string]bool{}
		for _, r := range w.kubelet.Requests() {
			if seen[r.GetEndpoint()] {
				w.t.Errorf("%s was registered twice", r.GetEndpoint())
			}
			seen[r.GetEndpoint()] = true
		}
		if sockets := w.sockets(); len(sockets) != 1 {
			w.t.Errorf("the sockets are %q, want that of the last server", sockets)
		}
	})
}

func TestSocketOfOtherAgentIsNotRemoved(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		end := w.successor(replicas(4), 1)
		if sockets := w.sockets(); len(sockets) != 2 {
			w.t.Errorf("the sockets are %q, want two", sockets)
		}
		end()
	})
}

// The creation of the kubelet's socket may be noticed after the registration.
func TestLateNoticeOfKubeletChangesNothing(t *testing.T) {
	t.Parallel()
	bothKubelets(t, func(w *world) {
		w.startKubelet()
		w.must(replicas(4), gpus(1))
		low := w.lowest(func() {
			w.net.Announce(w.kubelet.Socket())
			clk.Sleep(time.Minute)
		})
		if n := len(w.kubelet.Requests()); n != 1 || low != 4 {
			w.t.Errorf("registered %d times, with a low of %d", n, low)
		}
	})
}

func TestSocketPathFitsItsLimit(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		name := strings.Repeat("long", 13)
		w.must(fmt.Sprintf("sharing: {timeSlicing: {resources: [{name: gpu, rename: %s, replicas: 4}]}}", name), gpus(1))
		w.want("nvidia.com/"+name, 4)
		if socket := path.Join("/var/lib/kubelet/device-plugins", w.kubelet.Requests()[0].GetEndpoint()); len(socket) > 105 {
			w.t.Errorf("%s has %d bytes", socket, len(socket))
		}
	})
}
