package machines

import (
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// settings are the kubelet settings in a machine's user data.
type settings struct {
	labels map[string]string
	taints []corev1.Taint
	// maxPods is 0 if the image decides.
	maxPods int64
}

// boot reads user data as the images do: a MIME document with nodeadm's configuration (AL2023), or TOML (Bottlerocket).
func boot(userData string) (settings, error) {
	if strings.HasPrefix(userData, "MIME-Version:") {
		return nodeadm(userData)
	}
	return bottlerocket(userData)
}

// nodeConfigType is the media type of a part for nodeadm. Other parts are scripts.
const nodeConfigType = "application/node.eks.aws"

func nodeadm(userData string) (settings, error) {
	s := settings{labels: map[string]string{}}
	message, err := mail.ReadMessage(strings.NewReader(userData))
	if err != nil {
		return s, fmt.Errorf("reading user data: %w", err)
	}
	_, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil {
		return s, fmt.Errorf("reading the user data's Content-Type: %w", err)
	}
	parts := multipart.NewReader(message.Body, params["boundary"])
	for {
		part, err := parts.NextPart()
		if err == io.EOF { //nolint:errorlint // A document that is cut short ends with an error that wraps it.
			return s, nil
		}
		if err != nil {
			return s, fmt.Errorf("reading the parts of user data: %w", err)
		}
		if part.Header.Get("Content-Type") != nodeConfigType {
			continue
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return s, fmt.Errorf("reading the parts of user data: %w", err)
		}
		if err := s.nodeConfig(content); err != nil {
			return s, err
		}
	}
}

// nodeConfig applies a NodeConfig. As with nodeadm, a later one overrides an earlier one.
func (s *settings) nodeConfig(content []byte) error {
	var config struct {
		Spec struct {
			Kubelet struct {
				Config struct {
					RegisterWithTaints []corev1.Taint `json:"registerWithTaints"`
					MaxPods            int64          `json:"maxPods"`
				} `json:"config"`
				Flags []string `json:"flags"`
			} `json:"kubelet"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &config); err != nil {
		return fmt.Errorf("reading a NodeConfig: %w", err)
	}
	kubelet := config.Spec.Kubelet
	if kubelet.Config.RegisterWithTaints != nil {
		s.taints = kubelet.Config.RegisterWithTaints
	}
	if kubelet.Config.MaxPods > 0 {
		s.maxPods = kubelet.Config.MaxPods
	}
	for _, flag := range kubelet.Flags {
		list, ok := strings.CutPrefix(flag, "--node-labels=")
		if !ok {
			continue
		}
		if plain, err := strconv.Unquote(list); err == nil {
			list = plain
		}
		for label := range strings.SplitSeq(list, ",") {
			key, value, ok := strings.Cut(label, "=")
			if !ok {
				return fmt.Errorf("reading a NodeConfig: %q in %s is no label", label, flag)
			}
			s.labels[key] = value
		}
	}
	return nil
}

func bottlerocket(userData string) (settings, error) {
	var config struct {
		Settings struct {
			Kubernetes struct {
				NodeLabels map[string]string   `toml:"node-labels"`
				NodeTaints map[string][]string `toml:"node-taints"`
				MaxPods    int64               `toml:"max-pods"`
			} `toml:"kubernetes"`
		} `toml:"settings"`
	}
	if err := toml.Unmarshal([]byte(userData), &config); err != nil {
		return settings{}, fmt.Errorf("reading Bottlerocket's settings: %w", err)
	}
	kubernetes := config.Settings.Kubernetes
	s := settings{labels: kubernetes.NodeLabels, maxPods: kubernetes.MaxPods}
	for key, values := range kubernetes.NodeTaints {
		for _, v := range values {
			value, effect, ok := strings.Cut(v, ":")
			if !ok {
				return s, fmt.Errorf("reading Bottlerocket's settings: taint %s: %q names no effect", key, v)
			}
			s.taints = append(s.taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
		}
	}
	return s, nil
}
