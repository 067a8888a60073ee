// CSV files (RFC 4180) as columns: numbers become tensors, texts stay texts. Everything is checked when the file is
// opened. An error names file, line and column.
//
// Nothing is guessed: the caller defines the columns. For numbers alone, pass the tensors to TensorDataset
// (tensor_dataset.h). CsvDataset gives batches of numbers and texts together.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace hasten::data {

enum class CsvType {
  kText,     ///< as it stands
  kInteger,  ///< int64
  kFloat,    ///< float32
  kDouble,   ///< float64
};

/// A column to read.
struct CsvColumn {
  std::string name;  ///< as in the header; "0", "1" … where there is none
  CsvType type = CsvType::kFloat;
  /// The value for a missing number. Unset: NaN, and an error in a column of integers, which have none.
  std::optional<double> missing = {};
};

struct CsvOptions {
  /// The columns to read, in any order; those not named are left out. Empty: all of them, as texts.
  std::vector<CsvColumn> columns = {};
  /// The first record holds the names.
  bool header = true;
  char separator = ',';
  /// Fields that mean "no value" in columns of numbers; blanks around them do not count.
  std::vector<std::string> missing = {""};
};

/// The columns of one file, in memory; copies share them. Records end with LF or CR LF, and empty lines are left out.
/// Fields in quotes may hold separators, line ends and doubled quotes. Blanks around numbers do not count.
class CsvTable {
 public:
  /// Blocks: on the file. Throws: DataError (path; "file:line:column: …") for a file that cannot be
  /// read, bad quoting, records of differing lengths, or a text that is no number; UsageError for columns that are not
  /// there (with the nearest name) or named twice; UsageError for a `missing` of integers that is no whole number, or a
  /// separator that is a quote or a line end.
  explicit CsvTable(const std::string& path, const CsvOptions& options = {});

  size_t num_rows() const noexcept { return contents_->num_rows; }
  /// The values of one column of numbers, [rows].
  /// Throws: UsageError if there is no such column, or if it holds texts.
  at::Tensor operator[](const std::string& name) const;
  /// Several columns of numbers as one tensor, float32 [rows, columns].
  /// Throws: as operator[], or UsageError if none is named.
  at::Tensor matrix(const std::vector<std::string>& names) const;
  /// Throws: UsageError if there is no such column, or if it holds numbers.
  const std::vector<std::string>& texts(const std::string& name) const;

  const std::map<std::string, at::Tensor>& all_numbers() const noexcept { return contents_->numbers; }
  const std::map<std::string, std::vector<std::string>>& all_texts() const noexcept { return contents_->texts; }

 private:
  struct Contents {
    std::string path;
    size_t num_rows = 0;
    std::map<std::string, at::Tensor> numbers;
    std::map<std::string, std::vector<std::string>> texts;
  };
  [[noreturn]] void throw_no_column(const std::string& name, bool numbers) const;

  std::shared_ptr<const Contents> contents_;
};

/// Rows of a table by column name: tensors [n], and n texts.
struct CsvBatch {
  std::map<std::string, at::Tensor> numbers;
  std::map<std::string, std::vector<std::string>> texts;
  friend auto hasten_fields(CsvBatch& batch) { return std::tie(batch.numbers, batch.texts); }
};

/// A sample is a row of the table.
class CsvDataset : public torch::data::datasets::BatchDataset<CsvDataset, CsvBatch> {
 public:
  static constexpr bool kThreadSafe = true;

  explicit CsvDataset(CsvTable table) : table_(std::move(table)) {}
  /// Throws: DataError for an index out of range.
  CsvBatch get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override { return table_.num_rows(); }
  const CsvTable& table() const noexcept { return table_; }

 private:
  CsvTable table_;
};

}  // namespace hasten::data
