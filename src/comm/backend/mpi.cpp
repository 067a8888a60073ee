// See mpi.h. Every operation is a non-blocking one of MPI's with a request. So a wait can look at the clock, at the
// caller's checks, and at a peer that has closed its end. MPI itself has no way to end an operation early.
#include "comm/backend/mpi.h"

#include <mpi.h>

#include <torch/types.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <thread>

#include "comm/store/store_all_gather.h"
#include "hasten/comm/types/wait_check.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"

namespace hasten::comm {
namespace {

using Clock = std::chrono::steady_clock;

// The key under which a rank says that it has closed its end.
constexpr const char* kClosed = "closed";

std::string words_of(int error) {
  char words[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(error, words, &length);
  return {words, static_cast<size_t>(length)};
}

void check(int error, const char* call) {
  if (error != MPI_SUCCESS) throw std::runtime_error(text(call, ": ", words_of(error)));
}

// A number of elements for MPI, whose counts are int.
int count_of(int64_t number, const char* what) {
  if (number > std::numeric_limits<int>::max()) {
    throw UsageError(Origin{"comm"}, "backend mpi is given ", what, " of ", number, " elements; expected at most ",
                     std::numeric_limits<int>::max(), ". Send it in parts, or use gloo.");
  }
  return static_cast<int>(number);
}

MPI_Datatype type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kChar:
      return MPI_INT8_T;
    case at::kByte:
      return MPI_UINT8_T;
    case at::kInt:
      return MPI_INT32_T;
    case at::kLong:
      return MPI_INT64_T;
    default:
      throw InternalError({"comm"}, "backend mpi is given ", at::toString(dtype), ", which it does not reduce.");
  }
}

MPI_Op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return MPI_SUM;
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kProduct:
      return MPI_PROD;
    case ReduceOp::kBitAnd:
      return MPI_BAND;
    case ReduceOp::kBitOr:
      return MPI_BOR;
    case ReduceOp::kBitXor:
      return MPI_BXOR;
    case ReduceOp::kMean:
      break;
  }
  throw InternalError({"comm"}, "backend mpi is given a mean, which it does not form.");
}

// A count and type for `bytes`: eight bytes at a time where they are a multiple, for tensors of up to 16 GB.
struct Bytes {
  int count;
  MPI_Datatype type;
  static Bytes of(int64_t bytes) {
    if (bytes % 8 == 0) return {count_of(bytes / 8, "a tensor"), MPI_UINT64_T};
    return {count_of(bytes, "a tensor"), MPI_BYTE};
  }
};

// Initialises MPI once in a program, and finalises it at its end.
void start_mpi() {
  static std::once_flag once;
  std::call_once(once, [] {
    int is_on = 0, level = 0;
    MPI_Initialized(&is_on);
    if (is_on == 0) {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
      std::atexit([] {
        int is_off = 0;
        MPI_Finalized(&is_off);
        if (is_off == 0) MPI_Finalize();
      });
    } else {
      MPI_Query_thread(&level);
    }
    if (level < MPI_THREAD_MULTIPLE) {
      throw UsageError(Origin{"comm"},
                       "this MPI was initialised without MPI_THREAD_MULTIPLE, which backend mpi needs. ",
                       "Leave MPI_Init_thread to hasten, or ask it for that level.");
    }
  });
}

class MpiBackend : public Backend {
 public:
  MpiBackend(MPI_Comm ranks, const BackendSetup& setup)
      : ranks_(ranks), setup_(setup), timeout_(setup.options.timeout) {
    MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
  }
  // The communicator is left to MPI_Finalize: to free it is collective, and a destructor does not communicate.

  const char* name() const override { return "mpi"; }
  c10::DeviceType device_type() const override { return c10::DeviceType::CPU; }
  bool reduces(at::ScalarType dtype) const override {
    return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kChar || dtype == at::kByte ||
           dtype == at::kInt || dtype == at::kLong;
  }
  bool reduce_keeps_inputs() const override { return true; }

  Started all_reduce(at::Tensor tensor, ReduceOp op) override {
    return start({tensor}, "MPI_Iallreduce", [&](MPI_Request* request) {
      return MPI_Iallreduce(MPI_IN_PLACE, tensor.data_ptr(), count_of(tensor.numel(), "a tensor"),
                            type_of(tensor.scalar_type()), op_of(op), ranks_, request);
    });
  }

  Started reduce(at::Tensor tensor, int root, ReduceOp op) override {
    const bool is_root = setup_.rank == root;
    return start({tensor}, "MPI_Ireduce", [&](MPI_Request* request) {
      return MPI_Ireduce(is_root ? MPI_IN_PLACE : tensor.data_ptr(), is_root ? tensor.data_ptr() : nullptr,
                         count_of(tensor.numel(), "a tensor"), type_of(tensor.scalar_type()), op_of(op), root, ranks_,
                         request);
    });
  }

  Started broadcast(at::Tensor bytes, int root) override {
    const Bytes size = Bytes::of(static_cast<int64_t>(bytes.nbytes()));
    return start({bytes}, "MPI_Ibcast", [&](MPI_Request* request) {
      return MPI_Ibcast(bytes.data_ptr(), size.count, size.type, root, ranks_, request);
    });
  }

  Started all_gather(at::Tensor output, at::Tensor input) override {
    const Bytes size = Bytes::of(static_cast<int64_t>(input.nbytes()));
    const auto* own =
        static_cast<const char*>(output.const_data_ptr()) + setup_.rank * static_cast<int64_t>(input.nbytes());
    const void* from = input.const_data_ptr() == own ? MPI_IN_PLACE : input.const_data_ptr();
    return start({output, input}, "MPI_Iallgather", [&](MPI_Request* request) {
      return MPI_Iallgather(from, size.count, size.type, output.data_ptr(), size.count, size.type, ranks_, request);
    });
  }

  Started reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    if (output.is_alias_of(input)) input = input.clone();  // MPI refuses memory that is both
    return start({output, input}, "MPI_Ireduce_scatter_block", [&](MPI_Request* request) {
      return MPI_Ireduce_scatter_block(input.const_data_ptr(), output.data_ptr(), count_of(output.numel(), "a part"),
                                       type_of(output.scalar_type()), op_of(op), ranks_, request);
    });
  }

  Started all_to_all(at::Tensor output, std::vector<int64_t> output_counts, std::vector<at::Tensor> inputs) override {
    auto transfer = std::make_unique<Transfer>(*this);
    Lists lists;
    int64_t sent = 0, received = 0;
    std::vector<at::Tensor> flat;
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      flat.push_back(inputs[rank].reshape({-1}));
      lists.add(sent, static_cast<int64_t>(inputs[rank].nbytes()), received, output_counts[rank]);
    }
    const at::Tensor joined = at::cat(flat);
    transfer->lists = std::move(lists);
    const Lists& kept = transfer->lists;
    return start(
        {output, joined}, "MPI_Ialltoallv",
        [&](MPI_Request* request) {
          return MPI_Ialltoallv(joined.const_data_ptr(), kept.send_counts.data(), kept.send_starts.data(), MPI_BYTE,
                                output.data_ptr(), kept.receive_counts.data(), kept.receive_starts.data(), MPI_BYTE,
                                ranks_, request);
        },
        std::move(transfer));
  }

  Started barrier() override {
    return start({}, "MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(ranks_, request); });
  }

  Started send(at::Tensor bytes, int to, int tag) override {
    const Bytes size = Bytes::of(static_cast<int64_t>(bytes.nbytes()));
    return start({bytes}, "MPI_Isend", [&](MPI_Request* request) {
      return MPI_Isend(bytes.const_data_ptr(), size.count, size.type, to, tag, ranks_, request);
    });
  }
  Started receive(at::Tensor bytes, int from, int tag) override { return receive_from(bytes, from, tag, nullptr); }
  Started receive_any(at::Tensor bytes, int tag, std::shared_ptr<int> from) override {
    return receive_from(bytes, MPI_ANY_SOURCE, tag, std::move(from));
  }
  bool receives_from_any() const override { return true; }

  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  void close() noexcept override {
    if (closed_.exchange(true)) return;
    try {
      setup_.store.set(kClosed, "1");
    } catch (const std::exception&) {
      // The store is gone, and with it the ranks that could look.
    }
  }

 private:
  // Counts and places for all_to_all, in bytes.
  struct Lists {
    std::vector<int> send_counts, send_starts, receive_counts, receive_starts;
    void add(int64_t& sent, int64_t to_send, int64_t& received, int64_t to_receive) {
      send_counts.push_back(count_of(to_send, "a part"));
      send_starts.push_back(count_of(sent, "the parts"));
      receive_counts.push_back(count_of(to_receive, "a part"));
      receive_starts.push_back(count_of(received, "the parts"));
      sent += to_send;
      received += to_receive;
    }
  };

  class Transfer : public Backend::Transfer {
   public:
    explicit Transfer(MpiBackend& backend) : backend_(backend), deadline_(Clock::now() + backend.timeout_.load()) {}
    // What MPI still works on must stay: it knows no end before the end.
    ~Transfer() override {
      if (!ended_) (void)new std::pair(std::move(tensors), std::move(lists));
    }

    bool done() override {
      if (ended_) return true;
      int flag = 0;
      MPI_Status status;
      check(MPI_Test(&request, &flag, &status), "MPI_Test");
      if (flag == 0) return false;
      ended_ = true;
      if (from) *from = status.MPI_SOURCE;
      return true;
    }

    void wait() override {
      // MPI moves data only while it is called, so a wait polls, and sleeps between polls once it has lasted.
      auto look = Clock::now() + kLookEvery;
      for (int64_t polls = 0; !done(); ++polls) {
        if (polls < kBusyPolls) continue;
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        if (Clock::now() < look) continue;
        look = Clock::now() + kLookEvery;
        WaitCheck::run();
        backend_.require_open();
        if (Clock::now() > deadline_) throw TimedOut("Timed out in MPI");
      }
    }

    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<at::Tensor> tensors = {};
    Lists lists = {};
    std::shared_ptr<int> from = {};

   private:
    static constexpr int64_t kBusyPolls = 2000;
    static constexpr std::chrono::milliseconds kLookEvery = std::chrono::milliseconds(100);

    MpiBackend& backend_;
    const Clock::time_point deadline_;
    bool ended_ = false;
  };

  template <class Call>
  Started start(std::vector<at::Tensor> tensors, const char* name, const Call& call,
                std::unique_ptr<Transfer> transfer = nullptr) {
    require_open();
    if (!transfer) transfer = std::make_unique<Transfer>(*this);
    transfer->tensors = std::move(tensors);
    check(call(&transfer->request), name);
    return transfer;
  }

  Started receive_from(const at::Tensor& bytes, int from, int tag, std::shared_ptr<int> found) {
    const Bytes size = Bytes::of(static_cast<int64_t>(bytes.nbytes()));
    auto transfer = std::make_unique<Transfer>(*this);
    transfer->from = std::move(found);
    return start(
        {bytes}, "MPI_Irecv",
        [&](MPI_Request* request) {
          return MPI_Irecv(bytes.data_ptr(), size.count, size.type, from, tag, ranks_, request);
        },
        std::move(transfer));
  }

  void require_open() const {
    if (closed_) throw std::runtime_error("this rank has closed its end");
    if (Clock::now() < next_look_.load()) return;
    next_look_ = Clock::now() + std::chrono::milliseconds(100);
    if (setup_.store.get(kClosed)) throw std::runtime_error("a peer has closed its end");
  }

  const MPI_Comm ranks_;
  const BackendSetup setup_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<bool> closed_ = false;
  mutable std::atomic<Clock::time_point> next_look_ = Clock::time_point();
};

}  // namespace

bool mpi_is_built() {
  return true;
}

std::unique_ptr<Backend> make_mpi(const BackendSetup& setup) {
  start_mpi();
  int own = 0, job_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  MPI_Comm_size(MPI_COMM_WORLD, &job_size);
  if (job_size < setup.world_size) {
    throw UsageError(Origin{"comm", setup.rank, setup.world_size}, "backend mpi was asked for, but the MPI job has ",
                     job_size, job_size == 1 ? " process" : " processes", ", and the group '", setup.options.name,
                     "' has ", setup.world_size, ". Start the program with mpirun -n ", setup.world_size, '.');
  }
  // The ranks of a group are any processes of the job, in the group's order.
  std::vector<int> members;
  for (const std::string& word :
       store_all_gather(setup.store, "place", setup.rank, setup.world_size, text(own), setup.options.timeout)) {
    members.push_back(core::whole_number<int>(word).value());
  }
  MPI_Group job, chosen;
  check(MPI_Comm_group(MPI_COMM_WORLD, &job), "MPI_Comm_group");
  check(MPI_Group_incl(job, setup.world_size, members.data(), &chosen), "MPI_Group_incl");
  MPI_Comm ranks = MPI_COMM_NULL;
  const int tag = static_cast<int>(std::hash<std::string>()(setup.options.name) % 32768);
  const int failed = MPI_Comm_create_group(MPI_COMM_WORLD, chosen, tag, &ranks);
  MPI_Group_free(&chosen);
  MPI_Group_free(&job);
  check(failed, "MPI_Comm_create_group");
  return std::make_unique<MpiBackend>(ranks, setup);
}

}  // namespace hasten::comm
