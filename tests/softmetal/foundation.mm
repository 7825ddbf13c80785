// The few classes of Foundation that the host uses. Compiled without ARC.
#import <Foundation/Foundation.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#pragma clang diagnostic ignored "-Wincomplete-implementation"
#pragma clang diagnostic ignored "-Wobjc-property-implementation"
#pragma clang diagnostic ignored "-Wmismatched-parameter-types"
#pragma clang diagnostic ignored "-Wnullability"
#pragma clang diagnostic ignored "-Wprotocol"
#pragma clang diagnostic ignored "-Wnullability-completeness"

extern "C" {
id objc_alloc(Class type);
id objc_retain(id object);
void objc_release(id object);
id objc_autorelease(id object);
void softmetal_free(id object);
Class object_getClass(id object);
const char* class_getName(Class type);
bool class_respondsToSelector(Class type, SEL selector);
bool class_conformsToProtocol(Class type, Protocol* protocol);
bool objc_opt_isKindOfClass(id object, Class type);
void* _Block_copy(const void* block);
}

@interface NSObject (References)
- (id)retain;
- (id)autorelease;
- (oneway void)release;
@end

@implementation NSObject
+ (instancetype)alloc {
  return objc_alloc(self);
}
+ (instancetype)new {
  return [[self alloc] init];
}
+ (Class)class {
  return self;
}
- (instancetype)init {
  return self;
}
- (void)dealloc {
  softmetal_free(self);
}
- (id)copy {
  return [(id<NSCopying>)self copyWithZone:nullptr];
}
- (id)copyWithZone:(struct _NSZone*)zone {
  (void)zone;
  return objc_retain(self);
}
- (BOOL)isEqual:(id)other {
  return other == self;
}
- (NSUInteger)hash {
  return (NSUInteger)self;
}
- (Class)class {
  return object_getClass(self);
}
- (instancetype)self {
  return self;
}
- (BOOL)isKindOfClass:(Class)type {
  return objc_opt_isKindOfClass(self, type);
}
- (BOOL)conformsToProtocol:(Protocol*)protocol {
  return class_conformsToProtocol(object_getClass(self), protocol);
}
- (BOOL)respondsToSelector:(SEL)selector {
  return class_respondsToSelector(object_getClass(self), selector);
}
- (NSString*)description {
  return [NSString stringWithUTF8String:class_getName(object_getClass(self))];
}
- (id)retain {
  return objc_retain(self);
}
- (id)autorelease {
  return objc_autorelease(self);
}
- (oneway void)release {
  objc_release(self);
}
@end

@interface NSBlock : NSObject
@end
@implementation NSBlock
- (id)copyWithZone:(struct _NSZone*)zone {
  (void)zone;
  return (id)_Block_copy(self);
}
@end

@interface Protocol : NSObject
@end
@implementation Protocol
@end

@implementation NSString {
  std::string text_;
}
+ (instancetype)stringWithUTF8String:(const char*)text {
  return [[[NSString alloc] initWithBytes:text length:strlen(text) encoding:NSUTF8StringEncoding] autorelease];
}
- (instancetype)initWithBytes:(const void*)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding {
  (void)encoding;
  text_.assign(static_cast<const char*>(bytes), length);
  return self;
}
+ (instancetype)stringWithFormat:(NSString*)format, ... {
  std::string out;
  va_list arguments;
  va_start(arguments, format);
  for (const char* p = format.UTF8String; *p; ++p) {
    if (*p != '%') {
      out += *p;
      continue;
    }
    std::string conversion = "%";
    while (*++p && !strchr("diuxXscfg@%p", *p)) conversion += *p;
    conversion += *p;
    const bool is_long = conversion.find('l') != std::string::npos || conversion.find('z') != std::string::npos;
    char text[512] = "";
    switch (*p) {
      case '%': out += '%'; break;
      case '@': {
        const id object = va_arg(arguments, id);
        out += object ? [object description].UTF8String : "(null)";
        break;
      }
      case 's': out += va_arg(arguments, const char*); break;
      case 'f':
      case 'g': snprintf(text, sizeof text, conversion.c_str(), va_arg(arguments, double)); break;
      case 'p': snprintf(text, sizeof text, conversion.c_str(), va_arg(arguments, void*)); break;
      default:
        if (is_long) snprintf(text, sizeof text, conversion.c_str(), va_arg(arguments, long));
        else snprintf(text, sizeof text, conversion.c_str(), va_arg(arguments, int));
    }
    out += text;
    if (!*p) break;
  }
  va_end(arguments);
  return [NSString stringWithUTF8String:out.c_str()];
}
- (const char*)UTF8String {
  return text_.c_str();
}
- (NSUInteger)lengthOfBytesUsingEncoding:(NSStringEncoding)encoding {
  (void)encoding;
  return strlen(self.UTF8String);
}
// In UTF-16 units.
- (NSUInteger)length {
  NSUInteger units = 0;
  for (const char* p = self.UTF8String; *p; ++p) {
    const auto byte = static_cast<unsigned char>(*p);
    units += byte >= 0xf0 ? 2 : (byte & 0xc0) != 0x80;
  }
  return units;
}
- (BOOL)isEqualToString:(NSString*)other {
  return strcmp(self.UTF8String, other.UTF8String) == 0;
}
- (BOOL)isEqual:(id)other {
  return [other isKindOfClass:[NSString class]] && [self isEqualToString:other];
}
- (NSUInteger)hash {
  return std::hash<std::string>()(self.UTF8String);
}
- (NSString*)description {
  return self;
}
@end

// @"...": the compiler lays out class, flags, bytes and length.
@interface NSConstantString : NSString
@end
@implementation NSConstantString
- (const char*)UTF8String {
  struct Layout {
    void* isa;
    long flags;
    const char* bytes;
    long length;
  };
  return reinterpret_cast<Layout*>(self)->bytes;
}
@end
asm(".globl __CFConstantStringClassReference\n .hidden __CFConstantStringClassReference\n"
    ".set __CFConstantStringClassReference, OBJC_CLASS_$_NSConstantString");

@implementation NSArray {
  std::vector<id> objects_;
}
+ (instancetype)arrayWithObjects:(const id*)objects count:(NSUInteger)count {
  NSArray* array = [NSArray new];
  for (NSUInteger i = 0; i < count; ++i) array->objects_.push_back([objects[i] retain]);
  return [array autorelease];
}
- (NSUInteger)count {
  return objects_.size();
}
- (id)objectAtIndex:(NSUInteger)index {
  return objects_.at(index);
}
- (id)objectAtIndexedSubscript:(NSUInteger)index {
  return objects_.at(index);
}
- (void)dealloc {
  for (id object : objects_) [object release];
  [super dealloc];
}
@end

@implementation NSDictionary {
  std::vector<std::pair<id, id>> entries_;
}
+ (instancetype)dictionaryWithObjects:(const id*)objects forKeys:(const id*)keys count:(NSUInteger)count {
  NSDictionary* dictionary = [NSDictionary new];
  for (NSUInteger i = 0; i < count; ++i) dictionary->entries_.push_back({[keys[i] retain], [objects[i] retain]});
  return [dictionary autorelease];
}
- (NSUInteger)count {
  return entries_.size();
}
- (NSArray*)allKeys {
  std::vector<id> keys;
  for (const auto& entry : entries_) keys.push_back(entry.first);
  return [NSArray arrayWithObjects:keys.data() count:keys.size()];
}
- (id)objectForKey:(id)key {
  for (const auto& entry : entries_)
    if ([entry.first isEqual:key]) return entry.second;
  return nil;
}
- (id)objectForKeyedSubscript:(id)key {
  return [self objectForKey:key];
}
- (void)dealloc {
  for (const auto& entry : entries_) {
    [entry.first release];
    [entry.second release];
  }
  [super dealloc];
}
@end

@implementation NSNumber {
  long value_;
}
+ (NSNumber*)numberWithInt:(int)value {
  return [NSNumber numberWithUnsignedLong:(unsigned long)value];
}
+ (NSNumber*)numberWithUnsignedLong:(unsigned long)value {
  NSNumber* number = [NSNumber new];
  number->value_ = (long)value;
  return [number autorelease];
}
- (int)intValue {
  return (int)value_;
}
- (NSString*)description {
  return [NSString stringWithFormat:@"%ld", value_];
}
@end

NSErrorUserInfoKey const NSLocalizedDescriptionKey = @"NSLocalizedDescription";

@implementation NSError {
  NSString* domain_;
  NSInteger code_;
  NSDictionary* info_;
}
+ (instancetype)errorWithDomain:(NSErrorDomain)domain code:(NSInteger)code userInfo:(NSDictionary*)info {
  NSError* error = [NSError new];
  error->domain_ = [domain retain];
  error->code_ = code;
  error->info_ = [info retain];
  return [error autorelease];
}
- (NSErrorDomain)domain {
  return domain_;
}
- (NSInteger)code {
  return code_;
}
- (NSDictionary*)userInfo {
  return info_;
}
- (NSString*)localizedDescription {
  NSString* text = [info_ objectForKey:NSLocalizedDescriptionKey];
  return text ? text : domain_;
}
- (void)dealloc {
  [domain_ release];
  [info_ release];
  [super dealloc];
}
@end

@implementation NSURL {
  NSString* path_;
}
+ (instancetype)fileURLWithPath:(NSString*)path {
  NSURL* url = [NSURL new];
  url->path_ = [path retain];
  return [url autorelease];
}
- (NSString*)path {
  return path_;
}
- (void)dealloc {
  [path_ release];
  [super dealloc];
}
@end

void NSLog(NSString* format, ...) { fprintf(stderr, "%s\n", format.UTF8String); }
