// See titles.h.
#include "comm/c10d/titles.h"

namespace hasten::comm {
namespace {

struct Title {
  const char* gloo;
  const char* own;
};

Title titles_of(c10d::OpType type) {
  using enum c10d::OpType;
  switch (type) {
    case ALLREDUCE:
    case ALLREDUCE_COALESCED:
      return {"gloo:all_reduce", "hasten:all_reduce"};
    case _ALLREDUCE_SPARSE:
      return {"gloo:sparse_all_reduce", "hasten:sparse_all_reduce"};
    case BROADCAST:
      return {"gloo:broadcast", "hasten:broadcast"};
    case REDUCE:
      return {"gloo:reduce", "hasten:reduce"};
    case ALLGATHER:
    case _ALLGATHER_BASE:
    case ALLGATHER_COALESCED:
      return {"gloo:all_gather", "hasten:all_gather"};
    case GATHER:
      return {"gloo:gather", "hasten:gather"};
    case SCATTER:
      return {"gloo:scatter", "hasten:scatter"};
    case REDUCE_SCATTER:
    case _REDUCE_SCATTER_BASE:
      return {"gloo:reduce_scatter", "hasten:reduce_scatter"};
    case ALLTOALL:
    case ALLTOALL_BASE:
      return {"gloo:all_to_all", "hasten:all_to_all"};
    case SEND:
      return {"gloo:send", "hasten:send"};
    case RECVANYSOURCE:
      return {"gloo:recvAnySource", "hasten:recvAnySource"};
    case RECV:
      return {"gloo:recv", "hasten:recv"};
    case BARRIER:
      return {"gloo:barrier", "hasten:barrier"};
    default:
      return {nullptr, nullptr};
  }
}

}  // namespace

const char* title_of(c10d::OpType type, std::string_view backend_name) {
  const Title titles = titles_of(type);
  return backend_name == "gloo" ? titles.gloo : titles.own;
}

}  // namespace hasten::comm
