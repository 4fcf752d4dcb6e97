//! The shim's report about the end of its child: the file that stores it, and its delivery to a
//! connected daemon. Nothing here decides how the child ended.

mod report_delivery;
mod report_file;

pub(super) use report_delivery::{close_listener, send_report, store_report};
pub(super) use report_file::ReportFile;
pub use report_file::read_report;
