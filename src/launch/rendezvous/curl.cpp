// HTTP by libcurl; see http.h. The library is loaded when an etcd rendezvous asks for it: linked, it and what
// it needs would take several times as long to load as the command takes to start.
#include <curl/curl.h>
#include <dlfcn.h>

#include "hasten/core/error.h"
#include "launch/rendezvous/http.h"

namespace hasten::launcher {
namespace {

constexpr size_t kMostAnswerBytes = 1 << 20;

class Curl {
 public:
  Curl(std::chrono::milliseconds patience, const EtcdAccess& access)
      : library_(dlopen("libcurl.so.4", RTLD_NOW)) {
    if (library_ == nullptr) {
      throw UsageError({"launch"}, "the etcd rendezvous needs libcurl: ", dlerror(),
                       ". Install it (apt install libcurl4).");
    }
    load(init_, "curl_easy_init");
    load(setopt_, "curl_easy_setopt");
    load(perform_, "curl_easy_perform");
    load(getinfo_, "curl_easy_getinfo");
    load(strerror_, "curl_easy_strerror");
    load(append_, "curl_slist_append");
    load(free_all_, "curl_slist_free_all");
    handle_ = init_();
    setopt_(handle_, CURLOPT_TIMEOUT_MS, static_cast<long>(patience.count()));
    setopt_(handle_, CURLOPT_NOSIGNAL, 1L);
    setopt_(handle_, CURLOPT_PROXY, "");  // etcd is in the cluster
    setopt_(handle_, CURLOPT_WRITEFUNCTION, &Curl::take);
    setopt_(handle_, CURLOPT_ERRORBUFFER, reason_);
    const auto set_file = [this](CURLoption option, const std::string& path) {
      if (!path.empty()) setopt_(handle_, option, path.c_str());
    };
    set_file(CURLOPT_CAINFO, access.authority);
    set_file(CURLOPT_SSLCERT, access.certificate);
    set_file(CURLOPT_SSLKEY, access.key);
  }

  HttpAnswer post(const HttpRequest& request) {
    HttpAnswer answer;
    const std::string authorization = "Authorization: " + request.authorization;
    curl_slist* const headers =
        request.authorization.empty() ? nullptr : append_(nullptr, authorization.c_str());
    setopt_(handle_, CURLOPT_HTTPHEADER, headers);
    setopt_(handle_, CURLOPT_URL, request.url.c_str());
    setopt_(handle_, CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
    setopt_(handle_, CURLOPT_POSTFIELDS, request.body.c_str());
    setopt_(handle_, CURLOPT_WRITEDATA, &answer.text);
    reason_[0] = '\0';
    const CURLcode code = perform_(handle_);
    free_all_(headers);
    long status = 0;
    getinfo_(handle_, CURLINFO_RESPONSE_CODE, &status);
    answer.status = code == CURLE_OK ? static_cast<int>(status) : 0;
    if (code != CURLE_OK) answer.error = reason_[0] == '\0' ? strerror_(code) : reason_;
    return answer;
  }

 private:
  template <class Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr)
      throw UsageError({"launch"}, "libcurl has no ", name, "; is it older than 7.56?");
  }

  static size_t take(const char* bytes, size_t size, size_t count, std::string* text) {
    if (text->size() + size * count > kMostAnswerBytes) return 0;
    text->append(bytes, size * count);
    return size * count;
  }

  void* library_;  // stays loaded: the process ends with it
  CURL* handle_ = nullptr;
  CURL* (*init_)() = nullptr;
  CURLcode (*setopt_)(CURL*, CURLoption, ...) = nullptr;
  CURLcode (*perform_)(CURL*) = nullptr;
  CURLcode (*getinfo_)(CURL*, CURLINFO, ...) = nullptr;
  const char* (*strerror_)(CURLcode) = nullptr;
  curl_slist* (*append_)(curl_slist*, const char*) = nullptr;
  void (*free_all_)(curl_slist*) = nullptr;
  char reason_[CURL_ERROR_SIZE] = {};  // in more words than strerror_
};

}  // namespace

HttpPost make_http_post(std::chrono::milliseconds patience, const EtcdAccess& access) {
  auto curl = std::make_shared<Curl>(patience, access);
  return [curl](const HttpRequest& request) { return curl->post(request); };
}

}  // namespace hasten::launcher
