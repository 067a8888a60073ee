// The HTTP client over libcurl; see http.h. curl_stub.cpp replaces it in builds without libcurl's headers.
#include <curl/curl.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/http.h"
#include "hasten/core/strings.h"

namespace hasten::http {
namespace {

// The functions of the loaded library.
struct Curl {
  explicit Curl(const std::string& needed_by) : library(dlopen("libcurl.so.4", RTLD_NOW)) {
    if (library == nullptr) {
      throw UsageError(Origin{"http"}, needed_by, " needs libcurl: ", dlerror(),
                       ". Install it (apt install libcurl4).");
    }
    load(init, "curl_easy_init");
    load(setopt, "curl_easy_setopt");
    load(perform, "curl_easy_perform");
    load(getinfo, "curl_easy_getinfo");
    load(strerror, "curl_easy_strerror");
    load(reset, "curl_easy_reset");
    load(cleanup, "curl_easy_cleanup");
    load(append, "curl_slist_append");
    load(free_all, "curl_slist_free_all");
  }

  template <class Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr)
      throw UsageError(Origin{"http"}, "libcurl has no ", name, ", which 7.56 has. Install a later libcurl.");
  }

  void* library;  // stays loaded: the process ends with it
  CURL* (*init)() = nullptr;
  CURLcode (*setopt)(CURL*, CURLoption, ...) = nullptr;
  CURLcode (*perform)(CURL*) = nullptr;
  CURLcode (*getinfo)(CURL*, CURLINFO, ...) = nullptr;
  const char* (*strerror)(CURLcode) = nullptr;
  void (*reset)(CURL*) = nullptr;
  void (*cleanup)(CURL*) = nullptr;
  curl_slist* (*append)(curl_slist*, const char*) = nullptr;
  void (*free_all)(curl_slist*) = nullptr;
};

// Data for the callbacks of a transfer.
struct Transfer {
  const Curl& curl;
  CURL* handle;
  const ClientOptions& options;
  const Request& request;
  Response& response;
  std::FILE* file = nullptr;
  std::string reason = {};  // of a callback that ended the transfer

  bool take(std::string_view piece) {
    long status = 0;
    curl.getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    if (request.on_data && status >= 200 && status < 300) {
      try {
        if (request.on_data(piece)) return true;
        reason = "ended by the caller";
      } catch (const std::exception& error) {
        reason = error.what();
      }
      return false;
    }
    if (response.body.size() + piece.size() > options.max_body_bytes) {
      reason = text("the answer is longer than ", count_text(options.max_body_bytes, "byte"));
      return false;
    }
    response.body.append(piece);
    return true;
  }

  void take_header(std::string_view line) {
    if (line.starts_with("HTTP/")) return response.headers.clear();  // of the answer before, a redirect or a 100
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    response.headers.emplace_back(core::lower(line.substr(0, colon)), core::trim(line.substr(colon + 1)));
  }
};

size_t on_body(const char* bytes, size_t size, size_t count, Transfer* transfer) {
  return transfer->take({bytes, size * count}) ? size * count : 0;
}
size_t on_header(const char* bytes, size_t size, size_t count, Transfer* transfer) {
  transfer->take_header({bytes, size * count});
  return size * count;
}
size_t on_read(char* bytes, size_t size, size_t count, Transfer* transfer) {
  return std::fread(bytes, 1, size * count, transfer->file);
}
int on_seek(Transfer* transfer, curl_off_t offset, int origin) {
  return fseeko(transfer->file, offset, origin) == 0 ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}
int on_progress(Transfer* transfer, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const bool ends = transfer->options.cancelled && transfer->options.cancelled();
  if (ends) transfer->reason = "cancelled";
  return ends ? 1 : 0;
}

}  // namespace

struct Client::Impl {
  explicit Impl(ClientOptions own) : options(std::move(own)), curl(options.needed_by), handle(curl.init()) {
    if (handle == nullptr) throw UsageError(Origin{"http"}, options.needed_by, ": libcurl cannot start.");
  }
  ~Impl() { curl.cleanup(handle); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  template <class T>
  void set(CURLoption option, T value) {
    curl.setopt(handle, option, value);
  }

  void set_options() {
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(options.timeout.count()));
    if (options.stall_timeout.count() > 0) {
      set(CURLOPT_LOW_SPEED_LIMIT, 1L);
      set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall_timeout.count()));
    }
    if (!options.use_proxy) set(CURLOPT_PROXY, "");
    set(CURLOPT_FOLLOWLOCATION, options.follow_redirects ? 1L : 0L);
    set(CURLOPT_MAXREDIRS, 10L);
    set(CURLOPT_USERAGENT, options.user_agent.c_str());
    const auto set_file = [this](CURLoption option, const std::string& path) {
      if (!path.empty()) set(option, path.c_str());
    };
    set_file(CURLOPT_CAINFO, options.authority);
    set_file(CURLOPT_SSLCERT, options.certificate);
    set_file(CURLOPT_SSLKEY, options.key);
    if (!options.verify) {
      set(CURLOPT_SSL_VERIFYPEER, 0L);
      set(CURLOPT_SSL_VERIFYHOST, 0L);
    }
  }

  void set_body(const Request& request, Transfer& transfer) {
    if (transfer.file != nullptr) {
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(std::filesystem::file_size(request.body_file)));
      set(CURLOPT_READFUNCTION, &on_read);
      set(CURLOPT_READDATA, &transfer);
      set(CURLOPT_SEEKFUNCTION, &on_seek);
      set(CURLOPT_SEEKDATA, &transfer);
    } else if (request.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
    } else if (request.method != "GET" || !request.body.empty()) {
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      set(CURLOPT_POSTFIELDS, request.body.c_str());
    }
    if (request.method != "HEAD") set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }

  Response send(const Request& request) {
    Response response;
    Transfer transfer{curl, handle, options, request, response};
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
        request.body_file.empty() ? nullptr : std::fopen(request.body_file.c_str(), "rb"), &std::fclose);
    transfer.file = file.get();
    if (!request.body_file.empty() && transfer.file == nullptr) {
      throw DataError(Origin{"http"}, request.body_file, request.body_file, " cannot be read: ", std::strerror(errno),
                      ". Correct the path.");
    }
    char reason[CURL_ERROR_SIZE] = {};  // in more words than strerror
    curl.reset(handle);
    set_options();
    set(CURLOPT_ERRORBUFFER, static_cast<char*>(reason));
    set(CURLOPT_URL, request.url.c_str());
    set_body(request, transfer);
    curl_slist* list = nullptr;
    for (const auto& [name, value] : request.headers) list = curl.append(list, text(name, ": ", value).c_str());
    set(CURLOPT_HTTPHEADER, list);
    set(CURLOPT_WRITEFUNCTION, &on_body);
    set(CURLOPT_WRITEDATA, &transfer);
    set(CURLOPT_HEADERFUNCTION, &on_header);
    set(CURLOPT_HEADERDATA, &transfer);
    set(CURLOPT_NOPROGRESS, options.cancelled ? 0L : 1L);
    set(CURLOPT_XFERINFOFUNCTION, &on_progress);
    set(CURLOPT_XFERINFODATA, &transfer);
    const CURLcode code = curl.perform(handle);
    curl.free_all(list);
    long status = 0;
    const char* url = nullptr;
    curl.getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    curl.getinfo(handle, CURLINFO_EFFECTIVE_URL, &url);
    if (url != nullptr) response.url = url;
    response.status = code == CURLE_OK ? static_cast<int>(status) : 0;
    if (code != CURLE_OK) {
      response.error = !transfer.reason.empty() ? transfer.reason : reason[0] != '\0' ? reason : curl.strerror(code);
    }
    curl.setopt(handle, CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
    return response;
  }

  const ClientOptions options;
  const Curl curl;
  CURL* const handle;
};

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Response Client::send(const Request& request) {
  return impl_->send(request);
}

}  // namespace hasten::http
