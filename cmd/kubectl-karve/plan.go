package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

type planOptions struct {
	files         *genericclioptions.FileNameFlags
	instanceTypes string
	prices        string
	namespace     string
	replicas      string
	sharing       string
	conditions    conditions
	budget        time.Duration
	output        output
	kube          *genericclioptions.ConfigFlags
}

const planLong = `Show which machines Karve would launch for pods that share GPUs, and what they would cost. It plans for the
pending pods of a cluster, or for the pods of manifests that have not been applied. The command changes nothing and launches nothing.

Manifests are files for kubectl apply: NodePools, GPUNodeClasses, EC2NodeClasses, Pods and their owners (Deployments, Jobs,
CronJobs, JobSets, RayClusters and others), DaemonSets, what limits pods (RuntimeClasses, LimitRanges, ResourceQuotas), and
optionally existing Nodes, NodeClaims and running Pods. Notes name what the plan lacks. Without --instance-types,
prices for manifests are EC2's on-demand prices in us-east-1, and prices for a cluster are those of the controller.`

const planExample = `  # What would these manifests cost?
  kubectl karve plan -f manifests/

  # What would be launched in the cluster now, and for which pods?
  kubectl karve plan -o wide

  # How many pods should share a GPU?
  kubectl karve plan -f manifests/ --replicas 1..48

  # What would it cost to isolate them from each other?
  kubectl karve plan -f manifests/ --sharing TimeSlicing,MPS,MIG,MemorySlots,None

  # In a pipeline: fail if a pod has no place or the machines cost more than $20 an hour.
  kubectl karve plan -k overlays/production --fail-on-unplaced --max-usd-per-hour 20`

func planCommand(ctx context.Context, s streams) *cobra.Command {
	o := planOptions{kube: clusterFlags(), files: fileFlags("manifests to plan for instead of the cluster: files, directories, URLs, or - for standard input")}
	cmd := &cobra.Command{
		Use: "plan", Short: "Show what Karve would launch for pods that share GPUs, and what it would cost",
		Long: planLong, Example: planExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: use -f to name manifests", args[0])
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error { return o.run(ctx, s) },
	}
	fs := cmd.Flags()
	o.addSourceFlags(fs)
	fs.StringVar(&o.replicas, "replicas", "", "compare the cost of these numbers of replicas per GPU instead of planning: 10, or 2,4,8, or 1..48")
	fs.StringVar(&o.sharing, "sharing", "", "compare the cost of these strategies for sharing GPUs instead of planning, such as TimeSlicing,MPS; with --replicas, for each of these numbers of replicas")
	fs.DurationVar(&o.budget, "budget", 0, "stop the search after this time, such as 200ms; without it, the plan does not depend on the speed of the computer")
	o.output.addFlag(fs, "each pod and its GPU")
	o.conditions.addFlags(fs)
	return cmd
}

// addSourceFlags adds the flags for a cluster, for manifests instead of a cluster, and for the instance types.
func (o *planOptions) addSourceFlags(fs *pflag.FlagSet) {
	o.files.AddFlags(fs)
	o.addInstanceTypeFlags(fs)
	o.kube.AddFlags(fs)
}

func (o *planOptions) addInstanceTypeFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.instanceTypes, "instance-types", "", "JSON file of instance types in the schema of Karpenter's kwok provider, instead of the controller's or the built-in ones")
	fs.StringVar(&o.prices, "prices", "", "YAML file with rules for the prices that you pay, a list or the values of the chart, instead of those of the controller")
	addNamespaceFlag(fs, &o.namespace)
}

// run reads, plans and writes. It writes nothing if it fails, except for a plan that does not meet the conditions.
func (o *planOptions) run(ctx context.Context, s streams) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if o.budget < 0 {
		return fmt.Errorf("--budget must not be negative, but is %s", o.budget)
	}
	replicas, err := parseReplicas(o.replicas)
	if err != nil {
		return err
	}
	strategies, err := parseStrategies(o.sharing)
	if err != nil {
		return err
	}
	limit, err := o.conditions.limit(len(replicas)+len(strategies) > 0)
	if err != nil {
		return err
	}
	c, err := o.cluster(ctx, s.in)
	if err != nil {
		return err
	}
	notes := c.notes
	var made any
	var text func() string
	var broken error
	switch {
	case len(strategies) > 0:
		var comparison quote.Comparison
		comparison, err = quote.Compare(c.Cluster, strategies, replicas, o.search)
		made, text = &comparison, comparison.Text
	case len(replicas) > 0:
		var sweep quote.Sweep
		sweep, err = quote.SweepOf(c.Cluster, replicas, o.search)
		made, text = &sweep, sweep.Text
	default:
		var q quote.Quote
		if q, err = o.plan(&c); err == nil {
			made, text = &q, func() string { return q.Text(o.output.wide()) }
			notes = slices.Concat(notes, unservedNotes(&q), annotationNotes(c.Pods))
			broken = o.conditions.check(&q, limit)
		}
	}
	if err != nil {
		return err
	}
	s.warn(c.controller)
	s.notes(notes...)
	if err := o.output.print(s.out, made, text); err != nil {
		return err
	}
	return broken
}

func (o *planOptions) plan(c *source) (quote.Quote, error) {
	q, err := quote.Of(c.Cluster, o.search)
	if err != nil {
		return q, err
	}
	q.Controller = c.controller
	for _, r := range c.skipped.Refused {
		q.Refused = append(q.Refused, quote.Refused{Object: r.Object, Pods: r.Pods, Message: r.Why})
	}
	for _, u := range c.skipped.Unplanned {
		q.Unplanned = append(q.Unplanned, quote.Unplanned{Object: u.Object, Message: u.Why})
	}
	return q, nil
}

// search returns the solver for one plan, which stops when the budget is spent.
func (o *planOptions) search() solve.Solver {
	if o.budget == 0 {
		return solve.Solver{}
	}
	start := time.Now()
	return solve.Solver{Stop: func() bool { return time.Since(start) > o.budget }}
}

// maxInstanceTypes is the maximum size of a file of instance types in bytes. Those of a region of EC2 have 2 MiB.
const maxInstanceTypes = 64 << 20

// types returns the instance types in the file, or the built-in ones if there is no file.
func (o *planOptions) types() ([]catalog.InstanceType, error) {
	if o.instanceTypes == "" {
		return builtin.InstanceTypes()
	}
	content, err := newBounded("the instance types", maxInstanceTypes).readFile(o.instanceTypes)
	if err != nil {
		return nil, fmt.Errorf("--instance-types: %w", err)
	}
	types, err := catalog.ReadKWOK(bytes.NewReader(content), clouds.GPULabels()...)
	if err != nil {
		return nil, fmt.Errorf("--instance-types %s: %w", o.instanceTypes, err)
	}
	return types, nil
}

const maxPrices = 4 << 20

// rules returns the rules for prices in the file. It returns none if there is no file.
func (o *planOptions) rules() ([]prices.Rule, error) {
	if o.prices == "" {
		return nil, nil
	}
	content, err := newBounded("the prices", maxPrices).readFile(o.prices)
	if err != nil {
		return nil, fmt.Errorf("--prices: %w", err)
	}
	rules, err := prices.Parse(content)
	if err != nil {
		return nil, fmt.Errorf("--prices %s: %w", o.prices, err)
	}
	return rules, nil
}

type source struct {
	*facts.Cluster
	// skipped is what the cluster lacks of the manifests.
	skipped manifests.Skipped
	notes   []string
	// controller says whether a controller works. It is nil for manifests.
	controller *leader.Leader
	// from is what the controller has published. It is zero for manifests.
	from published.Source
}

func (o *planOptions) cluster(ctx context.Context, in io.Reader) (source, error) {
	named := o.files.ToOptions()
	if len(named.Filenames) == 0 && named.Kustomize == "" {
		live, err := connect(o.kube, ", or name manifests with -f")
		if err != nil {
			return source{}, err
		}
		return o.read(ctx, live)
	}
	types, err := o.types()
	if err != nil {
		return source{}, err
	}
	files, err := readFiles(ctx, named, in)
	if err != nil {
		return source{}, err
	}
	c, skipped, err := manifests.Read(ctx, files)
	if err != nil {
		return source{}, err
	}
	listing := catalog.Listing{InstanceTypes: types}
	if o.instanceTypes == "" {
		listing.Read = builtin.Read
	}
	if err := skipped.UseInstanceTypes(c, listing); err != nil {
		return source{}, err
	}
	rules, err := o.rules()
	if err != nil {
		return source{}, err
	}
	c.UsePrices(prices.NewBook(c.NodeOverlays, rules))
	notes := skippedNotes(&skipped)
	if o.instanceTypes == "" {
		notes = append(notes, builtinNotes(c)...)
	}
	return source{Cluster: c, skipped: skipped, notes: notes}, nil
}

// published returns what the controller has published, with the instance types and the rules for prices in the files if there are any.
func (o *planOptions) published(ctx context.Context, live connection) (published.Source, error) {
	var types []catalog.InstanceType
	if o.instanceTypes != "" {
		var err error
		if types, err = o.types(); err != nil {
			return published.Source{}, err
		}
	}
	rules, err := o.rules()
	if err != nil {
		return published.Source{}, err
	}
	s, err := published.OrBuiltin(ctx, live, o.namespace, types)
	if o.prices != "" {
		s.Settings.Prices = rules
	}
	return s, err
}

func (o *planOptions) read(ctx context.Context, live connection) (source, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	controller := live.leader(ctx, o.namespace)
	checked := live.checkRights(ctx, "plan", doctor.Namespaces{Controller: o.namespace})
	from, err := o.published(ctx, live)
	if err != nil {
		return source{}, err
	}
	c, err := live.cluster(ctx, from, allPods)
	if err != nil {
		return source{}, err
	}
	notes, err := checked()
	if err != nil {
		return source{}, err
	}
	switch {
	case from.Builtin != "":
		notes = append(append(notes, from.Builtin+"; use --instance-types for your own"), builtinNotes(c)...)
	case from.Forbidden:
		notes = append(notes, from.Assumed)
	case !from.At.IsZero():
		notes = append(notes, fmt.Sprintf("the instance types, zones and prices are those that the controller published %s ago", words.Age(c.Now.Sub(from.At))))
	}
	return source{Cluster: c, notes: notes, controller: controller(), from: from}, nil
}
