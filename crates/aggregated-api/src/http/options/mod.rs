//! Query parameters, decoded and checked: `ListOptions`, `CreateOptions`, `PatchOptions` and so on.

mod delete;
mod list;
mod page;
mod query;
mod write;

pub use self::delete::{DeleteOptions, Propagation};
pub use self::list::{ListOptions, ReadAt, revision};
pub use self::page::Continue;
pub use self::query::Query;
pub use self::write::{FieldValidation, WriteOptions};

/// Group of the options kinds in errors.
const META_GROUP: &str = "meta.k8s.io";
