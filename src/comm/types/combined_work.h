// Several operations as one: done when all are.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "hasten/comm/types/work.h"

namespace hasten::comm {

class CombinedWork : public detail::Operation {
 public:
  explicit CombinedWork(std::vector<Work<>> works) : works_(std::move(works)) {}

  bool done() override {
    return std::all_of(works_.begin(), works_.end(), [](const Work<>& work) { return work.done(); });
  }
  void wait() override {
    for (Work<>& work : works_) work.wait();
  }

 protected:
  /// Each is abandoned by itself.
  void on_abandon(std::shared_ptr<detail::Operation>) noexcept override {}

 private:
  std::vector<Work<>> works_;
};

/// Waits in the order of the list, and throws what the first throws that fails.
inline Work<> when_all(std::vector<Work<>> works) {
  return Work<>(std::make_shared<CombinedWork>(std::move(works)), [] {});
}

}  // namespace hasten::comm
