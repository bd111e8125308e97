package ui

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot/facts"
)

// frame is what the page shows at one moment. It is immutable.
type frame struct {
	// cluster and explainer are nil if the cluster was never read.
	cluster    *facts.Cluster
	explainer  func() *explain.Explainer
	controller leader.Leader
	// problem is why the last read of the cluster failed. The other fields are then from the read before.
	problem string

	head                 json.RawMessage
	nodes, pods, waiting rows
}

// rows are the objects of a list by name, as JSON. The names are in the order of the list.
type rows struct {
	names []string
	texts map[string]json.RawMessage
}

// head is an overview without its lists.
type head struct {
	Cluster string `json:"cluster,omitempty"`
	// Problem is why the cluster cannot be read. It is "" if it can.
	Problem    string        `json:"problem,omitempty"`
	Controller leader.Leader `json:"controller"`
	// Note describes where prices come from, if not from the controller.
	Note  string          `json:"note,omitempty"`
	Pools []overview.Pool `json:"pools"`
	// Totals are nil if the cluster was never read.
	Totals *overview.Totals `json:"totals,omitempty"`
	// HeadroomReplicas is the number of replicas to keep free. It is nil if unknown so far.
	HeadroomReplicas *int64 `json:"headroomReplicas,omitempty"`
	// Reservations are those that node classes select.
	Reservations []overview.Reservation `json:"reservations,omitempty"`
	Links        []Link                 `json:"links,omitempty"`
}

// update has the changes from one frame to another.
type update struct {
	// Whole reports that the update has everything.
	Whole    bool            `json:"whole,omitempty"`
	Overview json.RawMessage `json:"overview"`
	// Nodes, Pods and Waiting are those that are new or differ. Those in Gone no longer exist.
	Nodes   []json.RawMessage `json:"nodes,omitempty"`
	Pods    []json.RawMessage `json:"pods,omitempty"`
	Waiting []json.RawMessage `json:"waiting,omitempty"`
	Gone    *gone             `json:"gone,omitempty"`
}

// gone has the names of nodes, and the namespace/name of pods.
type gone struct {
	Nodes   []string `json:"nodes,omitempty"`
	Pods    []string `json:"pods,omitempty"`
	Waiting []string `json:"waiting,omitempty"`
}

// newFrame returns the frame of a cluster. The estimates may be those of the cluster a moment ago.
func newFrame(name, note string, links []Link, c *facts.Cluster, works leader.Leader, x func() *explain.Explainer, e *estimates) (*frame, error) {
	o := overview.Build(c)
	// The bound of a cluster without pods does not hold for the pods that have arrived since.
	if len(o.Pods)+len(o.Waiting) == 0 || e.bound != nil && *e.bound > 0 {
		o.Totals.BoundMicroUSDPerHour = e.bound
	}
	for i := range o.Waiting {
		o.Waiting[i].Reason = e.reasons[o.Waiting[i].Namespace+"/"+o.Waiting[i].Name]
	}
	f := &frame{cluster: c, controller: works, explainer: x}
	var err error
	if f.nodes, err = rowsOf(o.Nodes, func(n *overview.Node) string { return n.Name }); err != nil {
		return nil, err
	}
	if f.pods, err = rowsOf(o.Pods, func(p *overview.Pod) string { return p.Namespace + "/" + p.Name }); err != nil {
		return nil, err
	}
	if f.waiting, err = rowsOf(o.Waiting, func(p *overview.Waiting) string { return p.Namespace + "/" + p.Name }); err != nil {
		return nil, err
	}
	f.head, err = encode(head{Cluster: name, Controller: works, Note: note, Pools: o.Pools, Totals: &o.Totals, HeadroomReplicas: e.headroom, Reservations: o.Reservations, Links: links})
	return f, err
}

func (f *frame) failing(name string, problem error) (*frame, error) {
	failed, h := frame{}, head{Controller: leader.Leader{State: leader.Unknown}, Pools: []overview.Pool{}}
	if f != nil {
		failed = *f
		if err := json.Unmarshal(f.head, &h); err != nil {
			return nil, err
		}
	}
	h.Cluster, h.Problem, failed.problem = name, problem.Error(), problem.Error()
	var err error
	failed.head, err = encode(h)
	return &failed, err
}

// encode returns a value as JSON, without the hidden characters of text in objects: the page shows names and messages as the command line does.
func encode(v any) (json.RawMessage, error) {
	text, err := json.Marshal(v)
	return json.RawMessage(plain.Text(withoutEscapes(string(text)))), err
}

// withoutEscapes returns JSON without escape sequences of control characters, except for line feeds and tabs.
func withoutEscapes(text string) string {
	var kept strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			kept.WriteByte(text[i])
			continue
		}
		switch escape := text[i+1]; {
		case escape == 'u' && (strings.HasPrefix(text[i+2:], "000") || strings.HasPrefix(text[i+2:], "001")):
			i += len(`u0000`)
		case escape == 'b' || escape == 'f' || escape == 'r':
			i++
		default:
			kept.WriteString(text[i : i+2])
			i++
		}
	}
	return kept.String()
}

func rowsOf[T any](list []T, name func(*T) string) (rows, error) {
	r := rows{names: make([]string, len(list)), texts: make(map[string]json.RawMessage, len(list))}
	for i := range list {
		text, err := encode(&list[i])
		if err != nil {
			return rows{}, err
		}
		r.names[i] = name(&list[i])
		r.texts[r.names[i]] = text
	}
	return r, nil
}

// since returns the changes since an earlier frame. It returns false if there are none. If before is nil, it returns everything.
func (f *frame) since(before *frame) (update, bool) {
	u := update{Overview: f.head}
	if before == nil {
		u.Whole = true
		before = &frame{}
	}
	var g gone
	u.Nodes, g.Nodes = f.nodes.since(before.nodes)
	u.Pods, g.Pods = f.pods.since(before.pods)
	u.Waiting, g.Waiting = f.waiting.since(before.waiting)
	if len(g.Nodes)+len(g.Pods)+len(g.Waiting) > 0 {
		u.Gone = &g
	}
	return u, u.Whole || u.Gone != nil || len(u.Nodes)+len(u.Pods)+len(u.Waiting) > 0 || !bytes.Equal(f.head, before.head)
}

func (r rows) since(before rows) (differ []json.RawMessage, gone []string) {
	for _, name := range r.names {
		if !bytes.Equal(r.texts[name], before.texts[name]) {
			differ = append(differ, r.texts[name])
		}
	}
	gone = slices.DeleteFunc(slices.Clone(before.names), func(name string) bool { return r.texts[name] != nil })
	return differ, gone
}
