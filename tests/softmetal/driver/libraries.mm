// From source to pipelines: the compiler, functions, archives.
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "tests/softmetal/driver/host.h"

namespace driver {

const Scenarios& libraries_scenarios() {
  static const Scenarios all = {
      {"too much threadgroup memory",
       [](Host& host) {
         NSError* error = nil;
         id<MTLComputePipelineState> state = host.pipeline(@"large", &error);
         return state ? std::string("made") : text(error);
       }},
      {"unknown function",
       [](Host& host) {
         NSError* error = nil;
         id<MTLComputePipelineState> state = host.pipeline(@"nosuch", &error);
         return state ? std::string("made") : text(error);
       }},
      {"source that does not compile",
       [](Host& host) {
         NSError* error = nil;
         id<MTLLibrary> made = [host.device newLibraryWithSource:@"kernel void f() {\n  return 1;\n}\n" options:nil error:&error];
         return made ? std::string("made") : text(error);
       }},
      {"macros",
       [](Host& host) {
         MTLCompileOptions* options = [MTLCompileOptions new];
         options.mathMode = MTLMathModeSafe;
         options.preprocessorMacros = @{@"VALUE" : @5};
         NSString* source = @"#include <metal_stdlib>\nusing namespace metal;\n"
                             "kernel void twice(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n"
                             "  y[i] = VALUE;\n}\n";
         host.library = [host.device newLibraryWithSource:source options:options error:nil];
         const Binding y = host.buffer(1);
         host.open();
         host.dispatch(@"twice", {y});
         host.finish();
         return value_of(y) + " " + host.library.functionNames[0].UTF8String;
       }},
      {"archive",
       [](Host& host) {
         NSError* error = nil;
         char path[] = "/tmp/softmetal.XXXXXX";
         close(mkstemp(path));
         MTLBinaryArchiveDescriptor* of = [MTLBinaryArchiveDescriptor new];
         id<MTLBinaryArchive> archive = [host.device newBinaryArchiveWithDescriptor:of error:&error];
         MTLComputePipelineDescriptor* descriptor = [MTLComputePipelineDescriptor new];
         descriptor.computeFunction = [host.library newFunctionWithName:@"add"];
         std::string out = [archive addComputePipelineFunctionsWithDescriptor:descriptor error:&error] ? "added" : text(error);
         NSURL* url = [NSURL fileURLWithPath:[NSString stringWithUTF8String:path]];
         out += [archive serializeToURL:url error:&error] ? " saved" : text(error);
         of.url = url;
         archive = [host.device newBinaryArchiveWithDescriptor:of error:&error];
         descriptor.binaryArchives = @[ archive ];
         for (NSString* name : {@"add", @"twice"}) {
           descriptor.computeFunction = [host.library newFunctionWithName:name];
           const bool hit = [host.device newComputePipelineStateWithDescriptor:descriptor
                                                                       options:MTLPipelineOptionFailOnBinaryArchiveMiss
                                                                    reflection:nil
                                                                         error:&error];
           out += hit ? " hit" : " miss";
         }
         unlink(path);
         return out;
       }},
  };
  return all;
}

}  // namespace driver
