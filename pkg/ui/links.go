package ui

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Link is the address of another page about a pod, in which the page replaces {namespace}, {pod} and {node}.
type Link struct {
	Title string `json:"title"`
	URL   string `json:"url"`
}

// LinksTo returns the links to the dashboard of GPUs in a Grafana, by its URL, and to the logs of a pod, by a template. Each of them may be "".
func LinksTo(grafana, logs string) (all []Link, err error) {
	if grafana != "" {
		if err := address(grafana); err != nil {
			return nil, fmt.Errorf("the URL of Grafana: %w", err)
		}
		all = append(all, Link{"Grafana", strings.TrimRight(grafana, "/") + "/d/karve-gpus?var-namespace={namespace}&var-pod={pod}"})
	}
	if logs != "" {
		if err := address(logs); err != nil {
			return nil, fmt.Errorf("the URL of logs: %w", err)
		}
		if !strings.Contains(logs, "{pod}") {
			return nil, errors.New("the URL of logs needs {pod}, in the place of the name of a pod")
		}
		all = append(all, Link{"Logs", logs})
	}
	return all, nil
}

// address returns an error for what is no address of a web page: a browser would run others, such as those that begin with javascript.
func address(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.Contains(u.Host, "{") {
		return fmt.Errorf("%q is no URL such as https://grafana.example.com", text)
	}
	return nil
}
