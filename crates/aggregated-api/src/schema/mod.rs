//! What a kind is, from one declaration: names, structural schema, columns; and the documents that
//! follow from it (discovery, OpenAPI, tables).

pub mod age;
pub mod declaration;
pub mod discovery;
pub mod openapi;
pub mod scale;
pub mod structural;
pub mod table;
