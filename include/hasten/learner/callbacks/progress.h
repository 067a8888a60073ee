// Progress bar and the CSV file of an epoch's rows.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "hasten/learner/callback.h"

namespace hasten::tracking {
class Progress;
}

namespace hasten::learner {

/// A bar on standard error for each pass over batches, on the main process.
struct Progress : Callback {
  std::string_view name() const override { return "progress"; }
  int order() const override { return 60; }
  void before_train(Learner& learn) override;
  void before_validate(Learner& learn) override;
  void after_batch(Learner& learn) override;
  void after_train(Learner& learn) override;
  void after_validate(Learner& learn) override;
  void after_cancel_train(Learner& learn) override;
  void after_fit(Learner& learn) override;

 private:
  void open(Learner& learn, const char* what);
  std::shared_ptr<tracking::Progress> bar_ = {};
};

/// A header and one row an epoch, written through to the disk; on the main process.
struct CSVLogger : Callback {
  explicit CSVLogger(std::string file = "history.csv", bool append_to = false)
      : fname(std::move(file)), append(append_to) {}
  std::string_view name() const override { return "csv_logger"; }
  int order() const override { return 60; }
  PassSet passes() const override { return passes_of(PassKind::kFit); }
  void before_fit(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  std::string fname;
  bool append;

 private:
  void write(Learner& learn, const std::string& line, bool truncate) const;
  int64_t rows_ = 0;
};

}  // namespace hasten::learner
