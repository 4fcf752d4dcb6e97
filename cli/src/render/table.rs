//! Formats columns: each as wide as its content, two spaces apart, without trailing spaces.

/// Rows with one cell for every column of the header. Cells must not contain control characters.
#[derive(Debug)]
pub(crate) struct TextTable {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(crate) fn new<const N: usize>(header: [&'static str; N]) -> Self {
        Self::with_header(header.map(str::to_owned).to_vec())
    }

    /// For columns that are only known at run time.
    pub(crate) fn with_header(header: Vec<String>) -> Self {
        Self {
            header,
            rows: Vec::new(),
        }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.row_of_cells(cells.to_vec());
    }

    pub(crate) fn row_of_cells(&mut self, cells: Vec<String>) {
        debug_assert_eq!(
            cells.len(),
            self.header.len(),
            "a row has a cell for every column"
        );
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The header line, then the rows.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let widths = self.column_widths(&self.header);
        std::iter::once(self.header.clone())
            .chain(self.rows.iter().cloned())
            .map(move |cells| format_row(&cells, &widths))
    }

    fn column_widths(&self, header: &[String]) -> Vec<usize> {
        let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

fn format_row(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        text.push_str(cell);
        text.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_have_no_trailing_space() {
        let mut table = TextTable::new(["ID", "STATE"]);
        table.row(["1".to_owned(), "completed".to_owned()]);
        table.row(["größer".to_owned(), String::new()]);
        let lines: Vec<String> = table.lines().collect();
        assert_eq!(lines, ["ID      STATE", "1       completed", "größer"]);
    }
}
