// Command charts checks what packaging ships for containers.
//
// charts helm CHART VALUES lints the chart with helm's own linter and renders it with the values of a file. It decodes
// each manifest strictly into the type of Kubernetes' API, so that an unknown or misplaced field is an error, and
// prints the manifests as JSON, one on each line.
//
// charts compose FILE loads a Compose file with the specification's own library and prints it as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func main() {
	err := errors.New("usage: charts helm CHART VALUES | charts compose FILE")
	switch {
	case len(os.Args) == 4 && os.Args[1] == "helm":
		err = helm(os.Args[2], os.Args[3])
	case len(os.Args) == 3 && os.Args[1] == "compose":
		err = compose(os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func helm(path, valuesFile string) error {
	chart, err := loader.Load(path)
	if err != nil {
		return err
	}
	given, err := chartutil.ReadValuesFile(valuesFile)
	if err != nil {
		return err
	}
	release := chartutil.ReleaseOptions{Name: "attestd", Namespace: "payments", IsInstall: true}
	values, err := chartutil.ToRenderValues(chart, given, release, nil)
	if err != nil {
		return err
	}
	files, err := engine.Render(chart, values)
	if err != nil {
		return err
	}
	for _, found := range lint.All(path, given, release.Namespace, true).Messages {
		if found.Severity >= support.WarningSev {
			return found
		}
	}
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme} {
		if err := add(kinds); err != nil {
			return err
		}
	}
	decoder := serializer.NewCodecFactory(kinds, serializer.EnableStrict).UniversalDeserializer()
	out := json.NewEncoder(os.Stdout)
	for name, file := range files {
		if strings.HasSuffix(name, ".txt") {
			continue
		}
		for _, manifest := range releaseutil.SplitManifests(file) {
			object, _, err := decoder.Decode([]byte(manifest), nil, nil)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := out.Encode(object); err != nil {
				return err
			}
		}
	}
	return nil
}

func compose(path string) error {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithOsEnv)
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	text, err := project.MarshalJSON()
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	return err
}
