//! Names that several programs must agree on: groups, labels, annotations, finalizers.
//!
//! Nothing here is decided at run time; a changed constant is a change of the API.

/// The API group of the custom resources.
pub const GROUP: &str = "crawl.example.com";
/// The served version of [`GROUP`].
pub const VERSION: &str = "v1alpha1";
/// The name of the APIService by which the lease-apiserver is registered.
pub const LEASES_API_SERVICE: &str = "v1alpha1.leases.crawl.example.com";

/// Label on every member of a pool: the pool's name. It mirrors the controller ownerReference,
/// which alone decides membership.
pub const LABEL_POOL: &str = "crawl.example.com/pool";

/// Finalizer of a managed Proxy: an instance may exist that has to be deleted first.
pub const FINALIZER_INSTANCE: &str = "crawl.example.com/instance";

/// Annotation of a Proxy: the versioned hash (`v1:…`) of the create request that was sent for its
/// instance.
pub const ANNOTATION_SPEC_HASH: &str = "crawl.example.com/spec-hash";

/// Annotation of a pool's member: the versioned hash (`v1:…`) of what needs another machine in the
/// template that it was created from.
pub const ANNOTATION_TEMPLATE_HASH: &str = "crawl.example.com/template-hash";
/// Annotation of a pool's member: what of the template was last written into it, as JSON. What the
/// template changes is found by it, so that what somebody set by hand is left alone.
pub const ANNOTATION_APPLIED_TEMPLATE: &str = "crawl.example.com/applied-template";

/// Annotation of a Secret of generated credentials: when they were last changed, RFC 3339. Without
/// it they are as old as the Secret.
pub const ANNOTATION_ROTATED_AT: &str = "crawl.example.com/rotated-at";

/// What labels begin with that tell where the exit of a proxy is. They are on ProxyEndpoints, and
/// leases are selected by them; on a Proxy they count for nothing, since `status` knows.
pub const LABELS_EXIT: &str = "exit.crawl.example.com/";
/// The country of the exit, when known: `status.country`.
pub const LABEL_EXIT_COUNTRY: &str = "exit.crawl.example.com/country";
/// The autonomous system of the exit, when known: `status.asn`.
pub const LABEL_EXIT_ASN: &str = "exit.crawl.example.com/asn";

/// Tag on an instance at its provider: the cluster it belongs to (the UID of `kube-system`).
pub const TAG_CLUSTER: &str = "crawl-cluster";
/// Tag on an instance at its provider: the UID of its Proxy.
pub const TAG_PROXY_UID: &str = "crawl-proxy-uid";
/// Tag on an instance at its provider: the namespace of its Proxy, for people who look at the
/// provider's console.
pub const TAG_NAMESPACE: &str = "crawl-namespace";
/// Tag on an instance at its provider: the name of its Proxy, for people.
pub const TAG_NAME: &str = "crawl-name";
/// Tag on an instance at its provider: the hash of the request that created it, as in
/// [`ANNOTATION_SPEC_HASH`] with a dash for the colon. A crash between the create and the
/// annotation loses nothing.
pub const TAG_SPEC_HASH: &str = "crawl-spec-hash";

/// Annotation of a ProxyPool or Proxy: the RFC 3339 time up to which instances that went away
/// without the operator's doing are taken note of. Creation goes on that `MassExternalDeletion`
/// had stopped. `kubectl px resume` sets it; anything that is no time counts as not set.
pub const ANNOTATION_RESUME: &str = "crawl.example.com/resume";
