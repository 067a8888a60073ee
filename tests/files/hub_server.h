// A small server of the hub's form on the loopback interface, for tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace hasten::files::testing {

struct HubRequest {
  std::string method, path;
  std::map<std::string, std::string> headers;  ///< names in lower case
};
struct HubAnswer {
  int status = 200;
  std::map<std::string, std::string> headers = {};
  std::string body = {};
  size_t cut_after = SIZE_MAX;  ///< closes the connection after so many bytes of the body
};

class HubServer {
 public:
  explicit HubServer(std::function<HubAnswer(const HubRequest&)> handler) : handler_(std::move(handler)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 32) != 0)
      throw std::runtime_error("no port");
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { accept_all(); });
  }
  ~HubServer() {
    stopping_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (std::thread& thread : connections_) thread.join();
    close(listener_);
  }
  const std::string& url() const { return url_; }
  std::vector<HubRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void accept_all() {
    while (!stopping_) {
      const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) return;
      connections_.emplace_back([this, connection] {
        serve(connection);
        close(connection);
      });
    }
  }

  void serve(int connection) {
    std::string text;
    char buffer[4096];
    while (text.find("\r\n\r\n") == std::string::npos) {
      const ssize_t size = recv(connection, buffer, sizeof buffer, 0);
      if (size <= 0) return;
      text.append(buffer, static_cast<size_t>(size));
    }
    HubRequest request;
    const size_t first = text.find(' '), second = text.find(' ', first + 1);
    request.method = text.substr(0, first);
    request.path = text.substr(first + 1, second - first - 1);
    for (size_t at = text.find("\r\n") + 2; at < text.find("\r\n\r\n");) {
      const size_t end = text.find("\r\n", at), colon = text.find(':', at);
      std::string name = text.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(tolower(c));
      request.headers[name] = text.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    HubAnswer answer = handler_(request);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " X\r\nConnection: close\r\n";
    if (!answer.headers.contains("Content-Length"))
      answer.headers["Content-Length"] = std::to_string(answer.body.size());
    for (const auto& [name, value] : answer.headers) head += name + ": " + value + "\r\n";
    head += "\r\n";
    if (request.method != "HEAD") head += answer.body.substr(0, answer.cut_after);
    for (size_t sent = 0; sent < head.size();) {
      const ssize_t size = send(connection, head.data() + sent, head.size() - sent, MSG_NOSIGNAL);
      if (size <= 0) return;
      sent += static_cast<size_t>(size);
    }
  }

  std::function<HubAnswer(const HubRequest&)> handler_;
  int listener_ = -1;
  std::string url_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
  std::vector<std::thread> connections_;
  mutable std::mutex mutex_;
  std::vector<HubRequest> requests_;
};

}  // namespace hasten::files::testing
