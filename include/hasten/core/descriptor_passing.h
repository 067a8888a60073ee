// Descriptor passing: how processes of one user on one host come to have one file descriptor.
//
// A process offers it at a Unix socket with an abstract name. A caller must have the name's secret and belong to the
// same user. Name and secret travel by other means (a store, a collective).
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace hasten {

/// An endpoint at which a descriptor can be requested.
class DescriptorOffer {
 public:
  /// Listens from now on. Throws: std::system_error.
  DescriptorOffer();
  ~DescriptorOffer();
  DescriptorOffer(const DescriptorOffer&) = delete;
  DescriptorOffer& operator=(const DescriptorOffer&) = delete;

  /// Returns name and secret, 65 characters, for the callers only.
  const std::string& ticket() const noexcept { return ticket_; }

  /// Hands `descriptor` to `num_callers` callers, one after the other. `given_up` ends it early.
  /// Blocks: until all have come. Throws: std::runtime_error after `timeout`.
  void serve(int descriptor, int num_callers, std::chrono::milliseconds timeout,
             const std::function<bool()>& given_up = {});

 private:
  std::string ticket_;
  int listener_;
};

/// Requests the descriptor that is offered under `ticket`; the caller closes it.
/// Blocks: until it is passed on, five seconds at most. Throws: std::runtime_error.
int fetch_descriptor(const std::string& ticket);

}  // namespace hasten
