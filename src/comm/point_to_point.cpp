// Sending and receiving between two ranks; see group.h.
//
// Where operations are checked a message is preceded by its record. The receiver reads the record first and
// takes the data only if it fits, since Gloo ends the process when the sizes of the two sides differ; a
// checked receive therefore moves its data in wait().
#include <torch/types.h>

#include <cstring>

#include "comm/codec.h"
#include "comm/group_impl.h"

namespace hasten::comm {
namespace {

at::Tensor record_bytes(const Record& record) {
  const at::Tensor bytes = torch::empty({static_cast<int64_t>(sizeof(Record))}, at::kByte);
  std::memcpy(bytes.data_ptr(), &record, sizeof(Record));
  return bytes;
}

void check_peer(const Group::Impl& group, int peer, int tag, Kind kind) {
  group.check_open(kind);
  if (tag < 0) throw UsageError(group.origin(), name_of(kind), ": tag ", tag, " is negative. Use 0 or more.");
  group.check_rank(peer, "the peer", kind);
  if (peer == group.rank) throw UsageError(group.origin(), name_of(kind), ": a rank cannot be its own peer.");
}

// Receives the record and compares it with what the caller expects.
void check_message(Group::Impl& group, const at::Tensor& expected, int from, int tag,
                   const std::source_location& site) {
  const at::Tensor bytes = torch::empty({static_cast<int64_t>(sizeof(Record))}, at::kByte);
  group.wait(*group.cpu->receive(bytes, from, tag), Kind::kSend);
  Record theirs;
  std::memcpy(static_cast<void*>(&theirs), bytes.data_ptr(), sizeof(Record));
  const Record mine = Record::of(Kind::kSend, site).with_tensor(expected);
  if (mine.dtype == theirs.dtype && mine.dims == theirs.dims && mine.sizes == theirs.sizes &&
      mine.trailing == theirs.trailing) {
    return;
  }
  throw CommError(group.origin(), "receive", "rank ", from, " calls ", describe(theirs),
                  ", but this rank receives ", expected.scalar_type(), " [", join(expected.sizes()), "] at ",
                  mine.file.data(), ':', mine.line, ". Both sides must name the same dtype and shape.");
}

}  // namespace

Work<> Group::send_async(const at::Tensor& tensor, int to, int tag, Site site) const {
  Impl& group = *impl_;
  check_peer(group, to, tag, Kind::kSend);
  group.sweep();
  Backend& backend = group.backend_for(tensor);
  std::vector<Backend::Started> transfers;
  if (check_) {
    transfers.push_back(
        group.cpu->send(record_bytes(Record::of(Kind::kSend, site).with_tensor(tensor)), to, tag));
  }
  if (tensor.numel() > 0) transfers.push_back(backend.send(bytes_of(stage(tensor, backend)), to, tag));
  return group.work<void>(Kind::kSend, std::move(transfers), [] {});
}

Work<> Group::receive_async_(at::Tensor tensor, int from, int tag, Site site) const {
  Impl& group = *impl_;
  check_peer(group, from, tag, Kind::kSend);
  group.sweep();
  Backend& backend = group.backend_for(tensor);
  const at::Tensor staged = stage(tensor, backend);
  if (check_) {
    return Work<>([impl = impl_, &backend, tensor, staged, from, tag, site] {
      check_message(*impl, tensor, from, tag, site);
      if (tensor.numel() > 0) impl->wait(*backend.receive(bytes_of(staged), from, tag), Kind::kSend);
      write_back(tensor, staged);
    });
  }
  std::vector<Backend::Started> transfers;
  if (tensor.numel() > 0) transfers.push_back(backend.receive(bytes_of(staged), from, tag));
  return group.work<void>(Kind::kSend, std::move(transfers),
                          [tensor, staged] { write_back(tensor, staged); });
}

void Group::send(const at::Tensor& tensor, int to, int tag, Site site) const {
  send_async(tensor, to, tag, site).wait();
}

void Group::receive_(at::Tensor tensor, int from, int tag, Site site) const {
  receive_async_(std::move(tensor), from, tag, site).wait();
}

Work<> Group::batch_send_recv(const std::vector<PointToPoint>& messages, Site site) const {
  // Sends are started first on every rank, and receives are waited for first: no order of the list can
  // deadlock.
  auto sends = std::make_shared<std::vector<Work<>>>();
  auto receives = std::make_shared<std::vector<Work<>>>();
  for (const PointToPoint& message : messages) {
    if (message.kind != PointToPoint::Kind::kSend) continue;
    sends->push_back(send_async(message.tensor, message.peer, 0, site));
  }
  for (const PointToPoint& message : messages) {
    if (message.kind != PointToPoint::Kind::kReceive) continue;
    receives->push_back(receive_async_(message.tensor, message.peer, 0, site));
  }
  return Work<>([sends, receives] {
    for (auto& work : *receives) work.wait();
    for (auto& work : *sends) work.wait();
  });
}

}  // namespace hasten::comm
