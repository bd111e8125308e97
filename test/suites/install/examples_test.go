package install

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	karpenteraws "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"karve.sh/karve/test/harness/cluster"
)

var pinned = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+/[a-z0-9/_-]+@sha256:[0-9a-f]{64}$`)

// TestExamplesPinImagesAndSizeDisks checks the images and the disks of the manifests.
func TestExamplesPinImagesAndSizeDisks(t *testing.T) {
	t.Parallel()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	err = filepath.WalkDir(filepath.Join(root, "examples"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
			o := &unstructured.Unstructured{}
			if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			kinds[o.GetKind()]++
			switch o.GetKind() {
			case "Deployment":
				var d appsv1.Deployment
				convert(t, o, &d)
				if image := d.Spec.Template.Spec.Containers[0].Image; !pinned.MatchString(image) {
					t.Errorf("%s: the image %s has no digest, or no registry", path, image)
				}
			case "EC2NodeClass":
				var class karpenteraws.EC2NodeClass
				convert(t, o, &class)
				images := map[string]string{"al2023": "/dev/xvda", "bottlerocket": "/dev/xvdb"}
				family, _, _ := strings.Cut(class.Spec.AMISelectorTerms[0].Alias, "@")
				if !slices.ContainsFunc(class.Spec.BlockDeviceMappings, func(m *karpenteraws.BlockDeviceMapping) bool {
					return *m.DeviceName == images[family] && m.EBS.VolumeSize.Cmp(resource.MustParse("80Gi")) >= 0 && *m.EBS.Encrypted
				}) {
					t.Errorf("%s: the disk %s, on which %s has its images, is not for images with CUDA", path, images[family], family)
				}
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if kinds["Deployment"] < 3 || kinds["EC2NodeClass"] < 2 {
		t.Errorf("the examples have %v", kinds)
	}
}

func convert(t *testing.T, o *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into, true); err != nil {
		t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
}
