// ReadAhead: a thread that reads units before they are used.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace hasten::offload {

class ReadAhead {
 public:
  /// `read` reads unit i into memory, on the thread.
  ReadAhead(size_t num_units, std::function<void(size_t)> read);
  /// Ends the thread after the read in progress.
  ~ReadAhead();

  /// Queues a unit that is neither read nor queued. A process forked from this one gets a thread of its own.
  void request(size_t unit);
  /// Waits until the unit is read; queues it first of all if it was not requested.
  /// Blocks: until the unit is read. Throws: the exception of this unit's read.
  void wait(size_t unit);
  /// The unit has to be read anew.
  void forget(size_t unit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::offload
